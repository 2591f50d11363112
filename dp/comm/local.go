package comm

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// NewLocal makes a group of world ranks that are goroutines of this process. Element r of the result is rank r's.
func NewLocal(world int, opts ...Option) ([]Comm, error) {
	if world < 1 {
		return nil, fmt.Errorf("comm: a group of %d ranks: it needs at least one", world)
	}
	cfg, err := configure(opts)
	if err != nil {
		return nil, err
	}
	g := &group{limit: cfg.limit, broken: make(chan struct{}), teams: make([]*team, world+1)}
	t := g.team(world)
	ends := make([]Comm, world)
	for r := range ends {
		ends[r] = t.ends[r]
	}
	return ends, nil
}

// group is what all ranks of a process share. See meet.go for how they meet and how they fail.
type group struct {
	limit  time.Duration
	broken chan struct{} // closed when cause is set

	mu      sync.Mutex
	teams   []*team      // by size, made on demand; the last is all ranks
	cause   *BrokenError // what later calls return; nil as long as the group works
	verdict error        // what ranks return that waited when it broke
}

// team is the first ranks of a group, as many as it has ends.
type team struct {
	group   *group
	ends    []*local
	spins   int          // how often a waiting rank looks before it sleeps
	arrived int          // ranks that wait for the others' call; under group.mu
	working atomic.Int32 // ranks that have not done their part of the call in progress
}

// local is one rank's end of a team.
type local struct {
	member
	team    *team
	arrived bool // waits for the others' call; under group.mu
	// The call in progress. Other ranks read it from when all have arrived until all have done their part.
	call    Call
	buf     []float32 // what is exchanged; dst of Scatter and Gather
	src     []float32 // of Scatter and Gather
	scratch []float32 // one block, for sums of three and more

	wake  chan struct{} // a token when the rank sleeps
	timer *time.Timer

	_     [64]byte // the others' writes to state must not slow down what is above
	state atomic.Uint32
	_     [60]byte
}

// team returns the team of the first k ranks. g.mu is held, or g is new.
func (g *group) team(k int) *team {
	if g.teams[k] != nil {
		return g.teams[k]
	}
	t := &team{group: g, ends: make([]*local, k)}
	if procs := runtime.GOMAXPROCS(0); procs > 1 && k <= procs {
		t.spins = spins
	}
	for r := range t.ends {
		e := &local{team: t, wake: make(chan struct{}, 1), timer: time.NewTimer(g.limit)}
		e.member = member{rank: r, size: k, limit: g.limit, exchange: e.exchange}
		e.timer.Stop()
		if k > 2 {
			e.scratch = make([]float32, block)
		}
		t.ends[r] = e
	}
	g.teams[k] = t
	return t
}

func (l *local) Sub(k int) (Comm, error) {
	if err := l.noSub(k); err != nil {
		return nil, err
	}
	g := l.team.group
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.team(k).ends[l.rank], nil
}

func (l *local) Err() error {
	g := l.team.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		return nil // not a nil *BrokenError in the interface
	}
	return g.cause
}

func (l *local) Abort(cause error) {
	g := l.team.group
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail(l.rank, cause)
}

func (l *local) Close() error {
	if g := l.team.group; l.Size() == len(g.teams)-1 {
		l.Abort(ErrClosed)
	}
	return nil
}

// exchange is a collective: the ranks meet, each does its part of the work, and none leaves before all have.
func (l *local) exchange(ctx context.Context, c Call, buf, src []float32) error {
	if err := l.check(ctx, &c, buf, src); err != nil {
		l.Abort(err)
		return err
	}
	state, err := l.meet(ctx, c, buf, src)
	if err != nil {
		return err
	}
	if state != finished {
		l.team.work(l.rank, l.scratch)
		l.leave()
	}
	l.call, l.buf, l.src = Call{}, nil, nil
	l.state.Store(idle)
	return nil
}
