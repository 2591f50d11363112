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
	team    *team
	rank    int
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
		t.ends[r] = &local{team: t, rank: r, wake: make(chan struct{}, 1), timer: time.NewTimer(g.limit)}
		t.ends[r].timer.Stop()
		if k > 2 {
			t.ends[r].scratch = make([]float32, block)
		}
	}
	g.teams[k] = t
	return t
}

func (l *local) Rank() int { return l.rank }
func (l *local) Size() int { return len(l.team.ends) }

func (l *local) Broadcast(ctx context.Context, buf []float32, root int) error {
	return l.exchange(ctx, Call{Op: OpBroadcast, Len: len(buf), Root: root}, buf, nil)
}

func (l *local) Reduce(ctx context.Context, buf []float32, root int) error {
	return l.exchange(ctx, Call{Op: OpReduce, Len: len(buf), Root: root}, buf, nil)
}

func (l *local) AllReduce(ctx context.Context, buf []float32) error {
	return l.exchange(ctx, Call{Op: OpAllReduce, Len: len(buf)}, buf, nil)
}

func (l *local) ReduceScatter(ctx context.Context, buf []float32) error {
	return l.exchange(ctx, Call{Op: OpReduceScatter, Len: len(buf)}, buf, nil)
}

func (l *local) AllGather(ctx context.Context, buf []float32) error {
	return l.exchange(ctx, Call{Op: OpAllGather, Len: len(buf)}, buf, nil)
}

func (l *local) Scatter(ctx context.Context, dst, src []float32, counts []int, root int) error {
	return l.exchange(ctx, Call{Op: OpScatter, Root: root, Counts: counts}, dst, src)
}

func (l *local) Gather(ctx context.Context, dst, src []float32, counts []int, root int) error {
	return l.exchange(ctx, Call{Op: OpGather, Root: root, Counts: counts}, dst, src)
}

func (l *local) Barrier(ctx context.Context) error {
	return l.exchange(ctx, Call{Op: OpBarrier}, nil, nil)
}

func (l *local) Sub(k int) (Comm, error) {
	if k <= l.rank || k > l.Size() {
		return nil, fmt.Errorf("comm: rank %d of %d: no sub-group of %d ranks has this rank in it: give %d to %d", l.rank, l.Size(), k, l.rank+1, l.Size())
	}
	g := l.team.group
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.team(k).ends[l.rank], nil
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
	c.Rank, c.Group = l.rank, l.Size()
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

// check finds what is wrong with a call by itself, and fills in Len of Scatter and Gather.
func (l *local) check(ctx context.Context, c *Call, buf, src []float32) error {
	if ctx.Err() != nil {
		return l.ended(ctx, c.Op, nil)
	}
	wrong := func(format string, args ...any) error {
		return &ArgumentError{l.rank, c.Op, fmt.Sprintf(format, args...)}
	}
	if c.Op.rooted() && (c.Root < 0 || c.Root >= c.Group) {
		return wrong("root %d is not in the group of %d ranks", c.Root, c.Group)
	}
	if !c.Op.uneven() {
		return nil
	}
	if len(c.Counts) != c.Group {
		return wrong("%d counts for %d ranks", len(c.Counts), c.Group)
	}
	for r, n := range c.Counts {
		if n < 0 {
			return wrong("the count of rank %d is %d", r, n)
		}
		c.Len += n
	}
	part, whole, partName, wholeName := buf, src, "dst", "src"
	if c.Op == OpGather {
		part, whole, partName, wholeName = src, buf, "src", "dst"
	}
	if len(part) != c.Counts[l.rank] {
		return wrong("%s has %d elements, the rank's count is %d", partName, len(part), c.Counts[l.rank])
	}
	if l.rank == c.Root && len(whole) != c.Len {
		return wrong("the root's %s has %d elements, the sum of counts %v is %d", wholeName, len(whole), c.Counts, c.Len)
	}
	return nil
}

// ended is the error of a call whose context has ended while ranks were missing.
func (l *local) ended(ctx context.Context, op Op, missing []int) error {
	waiting := ""
	if len(missing) > 0 {
		waiting = " while waiting for " + names(missing)
	}
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err { //nolint:errorlint // a cause that wraps err has more to say
		return fmt.Errorf("comm: rank %d: %s%s: %w: %w", l.rank, op, waiting, err, cause)
	}
	return fmt.Errorf("comm: rank %d: %s%s: %w", l.rank, op, waiting, err)
}
