package exec

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// Link is a card's way to the cards of all other ranks of a group. All ranks put the same collectives into streams, in the same order.
type Link interface {
	// Put puts collectives into a stream, which may be captured, as one launch; early, where they take turns and the work before them in
	// the stream lets them, and they wait for its end by themselves. It may be called only between Begin and End, or while a graph is captured.
	Put(s cuda.Stream, list []Collective, early bool) error
	// TakesTurns reports whether collectives can be put early, and let what comes behind them be launched early.
	TakesTurns(list []Collective) bool
	// Begin says that the card is about to wait for others. End says that all of that is in the stream by now.
	Begin()
	End(s cuda.Stream) error
	// Err is why collectives have ended without a result, if they have.
	Err() error
	// Meetings are the link's.
	Meetings() *Meetings
}

// Collective is a collective on N elements of the card's memory.
type Collective struct {
	ir.Collective
	At cuda.Ptr
	N  int
}

var errNoComm = errors.New("the program exchanges with other ranks, and the run has no Comm to meet them by")

// agree waits until all ranks are about to meet on their cards, and at times lets them decide how the next run is arranged. Who fails does so here, or before.
func (e *Exec) agree(ctx context.Context, comm ir.Comm) error {
	if comm == nil {
		return errNoComm
	}
	meetings := e.link.Meetings()
	var ballots []float32
	if meetings.next() {
		ballots = e.contest.ballot()
	}
	if err := comm.Collective(ctx, ir.Collective{Kind: ir.AllReduce}, ballots); err != nil {
		return fmt.Errorf("before the cards meet: %w", err)
	}
	if ballots != nil {
		meetings.heard(e.contest.decide(ballots))
	}
	return nil
}

// Meetings counts the times that the ranks of a link have met before runs. All have met as often, whatever they run, so they know without a word
// to which meeting all bring ballots: to every one as long as somebody has something to find out, and some more; then now and then, since programs
// are loaded whose first runs are to come.
type Meetings struct{ n, until uint64 }

// seldom is how many meetings there are for one with ballots when nobody has anything to find out. It is prime, so that of programs that take turns each
// comes to one.
const seldom = 61

// next goes on to the next meeting, and reports whether ranks bring ballots to it.
func (m *Meetings) next() (ballots bool) {
	m.n++
	return m.n <= m.until || m.n%seldom == 1
}

// heard is told whether one of the ballots had a wish.
func (m *Meetings) heard(wish bool) {
	if wish {
		m.until = m.n + seldom
	}
}
