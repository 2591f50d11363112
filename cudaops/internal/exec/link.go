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
}

// Collective is a collective on N elements of the card's memory.
type Collective struct {
	ir.Collective
	At cuda.Ptr
	N  int
}

var errNoComm = errors.New("the program exchanges with other ranks, and the run has no Comm to meet them by")

// agree waits until all ranks are about to meet on their cards, and lets them decide how the next run is arranged. Who fails does so here, or before.
func (e *Exec) agree(ctx context.Context, comm ir.Comm) error {
	if comm == nil {
		return errNoComm
	}
	ballots := e.contest.ballot()
	if err := comm.Collective(ctx, ir.Collective{Kind: ir.AllReduce}, ballots); err != nil {
		return fmt.Errorf("before the cards meet: %w", err)
	}
	e.contest.decide(ballots)
	return nil
}
