package comm

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// sharedGroup is a process's place in a group whose ranks are processes of one host, which share memory (segment.go). See
// rendezvous.go for how they meet and fail, supersteps.go for how they move data.
type sharedGroup struct {
	seg   *segment
	rank  int
	limit time.Duration
	spins int // how often a waiting rank looks before it sleeps
	sleep sleeper
	rung  func() // rings this rank's bell
	ended func() // called when this rank has left, or nil

	teams []*shared // by size, made on demand; the last is all ranks
	last  *shared   // the team of the last call: its ranks may still read this one's stage

	mu      sync.Mutex
	busy    bool         // a call is in progress, and uses the memory
	closed  bool         // the memory goes when no call uses it
	cause   *BrokenError // what later calls return, once this rank knows that the group is broken
	verdict error        // what this rank returns if it waited when that happened
}

// shared is one rank's end of a team: the first ranks of a group, as many as its size.
type shared struct {
	member
	group *sharedGroup
	next  uint64 // the phase of the next meeting; the same for all ranks
	met   uint64 // the fate of the last meeting
	turn  int    // which descriptor the next call uses

	fate    *atomic.Uint64
	waiting *atomic.Uint32
	phases  []*atomic.Uint64 // by rank
	done    []*atomic.Uint64
	calls   [2][][]int64   // descriptors, by turn and rank
	in, out [2][][]float32 // stages, by area and rank
}

// newShared makes rank's end of the group that shares seg, which is its own from now on.
func newShared(seg *segment, rank int, limit time.Duration, ended func()) *shared {
	g := &sharedGroup{seg: seg, rank: rank, limit: limit, ended: ended, teams: make([]*shared, seg.world+1)}
	if seg.world <= runtime.NumCPU() {
		g.spins = sharedSpins
	}
	g.rung = g.ringSelf
	return g.team(seg.world)
}

// team returns the end of the team of the first k ranks.
func (g *sharedGroup) team(k int) *shared {
	if g.teams[k] != nil {
		return g.teams[k]
	}
	t := &shared{group: g, next: 1}
	t.member = member{rank: g.rank, size: k, limit: g.limit, exchange: t.exchange}
	if k > 1 {
		t.fate, t.waiting = g.seg.fate(k), g.seg.waiting(k)
		for r := range k {
			t.phases = append(t.phases, g.seg.phase(k, r))
			t.done = append(t.done, g.seg.done(k, r))
			for i := range 2 {
				t.calls[i] = append(t.calls[i], g.seg.descriptor(k, r, i))
				in, out := g.seg.stage(r, i)
				t.in[i] = append(t.in[i], in)
				t.out[i] = append(t.out[i], out)
			}
		}
	}
	g.teams[k] = t
	return t
}

func (t *shared) Sub(k int) (Comm, error) {
	if err := t.noSub(k); err != nil {
		return nil, err
	}
	if t.group.teams[k] == nil {
		// The memory may be gone.
		t.group.mu.Lock()
		defer t.group.mu.Unlock()
		if t.group.seg.mem == nil {
			return nil, t.group.cause
		}
	}
	return t.group.team(k), nil
}

func (t *shared) Err() error {
	g := t.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.look(); g.cause == nil {
		return nil // not a nil *BrokenError in the interface
	}
	return g.cause
}

func (t *shared) Abort(cause error) {
	if cause == nil {
		cause = noCause(t.rank)
	}
	t.group.fail(t.rank, cause, false)
}

func (t *shared) Close() error {
	g := t.group
	if t.size < g.seg.world {
		return nil
	}
	t.Abort(ErrClosed)
	g.mu.Lock()
	again := g.closed
	g.closed = true
	g.release()
	g.mu.Unlock()
	if g.ended != nil && !again {
		g.ended()
	}
	return nil
}

// exchange is a collective: this rank shows its data, the ranks meet, and each takes what is its.
func (t *shared) exchange(ctx context.Context, c Call, buf, src []float32) error {
	if err := t.check(ctx, &c, buf, src); err != nil {
		t.Abort(err)
		return err
	}
	if err := t.enter(c.Op); err != nil {
		return err
	}
	defer t.group.leave()
	if t.size == 1 {
		if c.Op.uneven() {
			copy(buf, src)
		}
		return nil
	}
	if err := t.claim(c.Op); err != nil {
		return err
	}
	x := transfer{t: t, c: c, buf: buf, src: src, first: t.next}
	x.plan()
	x.post(0)
	if err := t.meet(ctx, &c); err != nil {
		return err
	}
	for s := 1; ; s++ {
		x.step(s)
		if s == x.last {
			break
		}
		if err := t.keepPace(c.Op, x.first+uint64(s)); err != nil {
			return err
		}
	}
	t.next += uint64(x.last)
	t.finish()
	return nil
}

// enter begins a call, if the group works.
func (t *shared) enter(op Op) error {
	g := t.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.look(); g.cause != nil {
		return g.cause
	}
	if g.busy {
		return t.busy(op)
	}
	g.busy = true
	return nil
}

// leave ends it.
func (g *sharedGroup) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = false
	g.release()
}

// release gives the memory back when this rank is through with it. g.mu is held.
func (g *sharedGroup) release() {
	if g.closed && !g.busy && g.seg.mem != nil {
		g.seg.unmap()
	}
}

// look learns whether the group is broken, and why. g.mu is held.
func (g *sharedGroup) look() {
	if g.cause != nil {
		return
	}
	by := g.seg.broken().Load()
	if by == 0 {
		return
	}
	rec, err := decodeRecord(g.seg.record(int(by - 1)))
	if err != nil {
		rec = &record{Rank: -1, Remote: newRemoteError(int(by-1), err)}
	}
	g.cause, g.verdict = rec.errors()
}

// fail breaks the group because of what happened on one rank; with all, because of something between ranks: those that wait get the
// cause itself. It reports whether this is why the group is broken now.
func (g *sharedGroup) fail(rank int, cause error, all bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.look(); g.cause != nil {
		return false
	}
	newRecord(g.rank, rank, cause, all).encode(g.seg.record(g.rank))
	if !g.seg.broken().CompareAndSwap(0, uint32(1+g.rank)) {
		g.look()
		return false
	}
	g.cause = &BrokenError{Rank: rank, Cause: cause}
	g.verdict = g.cause
	if all {
		g.verdict = cause
	}
	g.ringAll()
	return true
}

// lose says that a rank does nothing more, ever, because of cause: nobody needs to wait for it.
func (g *sharedGroup) lose(rank int, cause error) {
	g.fail(rank, cause, false) // first: who sees that a rank is gone finds out why
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seg.mem != nil {
		g.seg.gone(rank).Store(1)
		g.ringAll()
	}
}

// ringAll wakes every rank. g.mu is held, and the memory there.
func (g *sharedGroup) ringAll() {
	for r := range g.seg.world {
		ring(g.seg.bell(r))
	}
}

// ringSelf wakes this rank.
func (g *sharedGroup) ringSelf() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seg.mem != nil {
		ring(g.seg.bell(g.rank))
	}
}
