package comm

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// How ranks meet that share memory
//
// Each rank of a team counts phases: one for each meeting, and one for each superstep of a long call after it. A rank shows its data and
// what it calls, then its new phase. Who sees that all have come compares their calls and decides the meeting's fate, one word for the team:
// go, by compare-and-swap. A rank that gives up (its context ended, the group broke, the limit passed) tries to swap in dead. One of
// them wins, the others follow, so all ranks go on or none does.
//
// From there a call runs to its end whatever breaks the group meanwhile; what still ends it is a rank that is gone, because its
// process died or it gave up itself, and the limit. A rank that gives up there is gone for the others.
//
// Why the group broke is in a record. A rank writes its own, and the one whose number gets into the word broken is what all read.
//
// Nobody polls. A waiting rank looks for some microseconds, if the host has a CPU for each rank; then it says that it is asleep, looks once
// more, and sleeps at its bell. Whoever completes what others may wait for rings for those that are asleep. Both sides write before
// they read, so that one of them sees the other.

// sharedSpins is how often a waiting rank looks before it sleeps: for about as long as it takes to sleep and be woken, some ten
// microseconds. With a quarter of it, the ranks of an all-reduce of 4 MB fall asleep between supersteps, and it takes four times as long.
const sharedSpins = 20000

// brief is how long a rank sleeps at first. Most waits end by then; what costs something, and matters only to long ones, comes after.
const brief = 20 * time.Millisecond

// went and dead are the fates of the meeting in a phase.
func went(phase uint64) uint64 { return 2 * phase }
func dead(phase uint64) uint64 { return 2*phase + 1 }

// meet waits until all ranks of the team have made the same call.
func (t *shared) meet(ctx context.Context, c *Call) error {
	g := t.group
	t.describe(c)
	t.phases[t.rank].Store(t.next)
	if reached(t.phases, t.next) {
		t.decide()
	}
	var unregister func() bool
	goes := func() bool {
		fate := t.fate.Load() // of this meeting, or of a later one, which is only after this one went well
		return fate >= went(t.next) && fate != dead(t.next)
	}
	stops := func() bool { return g.seg.broken().Load() != 0 || ctx.Err() != nil }
	late := g.wait(goes, stops, func() {
		if ctx.Done() != nil {
			unregister = context.AfterFunc(ctx, g.rung)
		}
		t.suspect()
	})
	if unregister != nil {
		unregister()
	}
	if !goes() {
		t.suspect()
		t.fate.CompareAndSwap(t.met, dead(t.next))
	}
	if goes() {
		t.met = went(t.next)
		t.turn = 1 - t.turn
		return nil
	}
	switch missing := lagging(t.phases, t.next); {
	case g.seg.broken().Load() != 0:
	case late:
		g.fail(-1, &TimeoutError{Op: c.Op, Limit: g.limit, Missing: missing}, true)
	default:
		if err := t.ended(ctx, c.Op, missing); g.fail(t.rank, err, false) {
			return err
		}
	}
	return g.why()
}

// decide lets the ranks go on, all of which have come, or finds that their calls differ.
func (t *shared) decide() {
	if err := t.compare(); err != nil {
		t.reject(err)
		return
	}
	if t.fate.CompareAndSwap(t.met, went(t.next)) {
		t.wake()
	}
}

// reject ends the meeting because calls differ.
func (t *shared) reject(err error) {
	if t.fate.CompareAndSwap(t.met, dead(t.next)) {
		t.group.fail(-1, err, true)
	}
}

// suspect looks, once a wait is long, for what would make it last for ever.
func (t *shared) suspect() {
	if reached(t.phases, t.next) {
		t.decide() // for the rank that should have, and may not run any more
		return
	}
	err := t.compare()
	if err == nil {
		err = t.elsewhere()
	}
	if err != nil {
		t.reject(err)
	}
}

// describe writes down what this rank calls.
func (t *shared) describe(c *Call) {
	d := t.calls[t.turn][t.rank]
	d[0], d[1], d[2] = int64(c.Op), int64(c.Len), int64(c.Root)
	for r := range d[3:] {
		d[3+r] = 0
		if c.Op.uneven() {
			d[3+r] = int64(c.Counts[r])
		}
	}
}

// compare returns an error if the ranks that have come made different calls. What they have written stays: they can't leave this
// meeting before this rank does, nor write again there before the next.
func (t *shared) compare() error {
	for r, d := range t.calls[t.turn] {
		if t.phases[r].Load() >= t.next && !slices.Equal(d, t.calls[t.turn][t.rank]) {
			return mismatch(t.come(t.next))
		}
	}
	return nil
}

// elsewhere returns an error if a rank that this one waits for waits for this one in another team: neither call would ever end. A rank
// that is in a later phase of a team than this one is in a meeting there that it can't leave.
func (t *shared) elsewhere() error {
	seg := t.group.seg
	for k := t.rank + 1; k <= seg.world; k++ {
		if k == t.size || k == 1 {
			continue
		}
		here := seg.phase(k, t.rank).Load()
		for r := range min(k, t.size) {
			// In this order: it is stuck there, and so it will not come here.
			if seg.phase(k, r).Load() > here && t.phases[r].Load() < t.next {
				return mismatch(append(t.group.team(k).come(here+1), t.come(t.next)...))
			}
		}
	}
	return nil
}

// come are the calls of the ranks that have come to the meeting in a phase.
func (t *shared) come(phase uint64) []Call {
	var calls []Call
	for r, d := range t.calls[t.turn] {
		if t.phases[r].Load() < phase {
			continue
		}
		c := Call{Rank: r, Group: t.size, Op: Op(d[0]), Len: int(d[1]), Root: int(d[2])}
		if c.Op.uneven() {
			for _, n := range d[3:] {
				c.Counts = append(c.Counts, int(n))
			}
		}
		calls = append(calls, c)
	}
	return calls
}

// keepPace tells the others that this rank has done its part of a phase, and waits until they have.
func (t *shared) keepPace(op Op, phase uint64) error {
	t.phases[t.rank].Store(phase)
	if reached(t.phases, phase) {
		t.wake()
		return nil
	}
	return t.follow(op, t.phases, phase)
}

// claim waits until the last call, if it was among other ranks, no longer uses this one's stage. Among the same ranks the meetings see to
// that: each call uses the area that the one before it did not.
func (t *shared) claim(op Op) error {
	last := t.group.last
	t.group.last = t
	if last == nil || last == t || reached(last.done, last.next) {
		return nil
	}
	last.waiting.Add(1)
	defer last.waiting.Add(^uint32(0))
	return last.follow(op, last.done, last.next)
}

// finish tells the others that this rank reads nothing of theirs any more.
func (t *shared) finish() {
	t.done[t.rank].Store(t.next)
	if t.waiting.Load() != 0 && reached(t.done, t.next) {
		t.wake()
	}
}

// follow waits until all ranks have counted to n, and stops for nothing but the limit and a rank that is gone.
func (t *shared) follow(op Op, counters []*atomic.Uint64, n uint64) error {
	g := t.group
	stops := func() bool {
		for r, c := range counters {
			if c.Load() < n && g.seg.gone(r).Load() != 0 {
				return true
			}
		}
		return false
	}
	late := g.wait(func() bool { return reached(counters, n) }, stops, func() {})
	left := lagging(counters, n)
	if len(left) == 0 {
		return nil
	}
	if late {
		g.fail(-1, &TimeoutError{Op: op, Limit: g.limit, Missing: left}, true)
	}
	err := g.why()
	g.lose(t.rank, err)
	return err
}

// reached reports whether all ranks have counted to n.
func reached(counters []*atomic.Uint64, n uint64) bool {
	for _, c := range counters {
		if c.Load() < n {
			return false
		}
	}
	return true
}

// lagging are the ranks that have not.
func lagging(counters []*atomic.Uint64, n uint64) []int {
	var ranks []int
	for r, c := range counters {
		if c.Load() < n {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// wake wakes the ranks of the team that sleep.
func (t *shared) wake() {
	seg := t.group.seg
	for r := range t.size {
		if r != t.rank && seg.asleep(r).Load() != 0 {
			ring(seg.bell(r))
		}
	}
}

// wait returns when this rank is ready or has a reason to stop, or, which it reports, the limit has passed. Once the wait is long it
// calls long.
func (g *sharedGroup) wait(ready, stops func() bool, long func()) (late bool) {
	for range g.spins {
		if ready() {
			return false
		}
	}
	bell, asleep := g.seg.bell(g.rank), g.seg.asleep(g.rank)
	defer asleep.Store(0)
	start, pause := time.Now(), brief
	for {
		seen := bell.Load()
		asleep.Store(1)
		waited := time.Since(start)
		switch {
		case ready() || stops():
			return false
		case waited >= g.limit:
			return true
		case waited >= brief && pause == brief:
			pause = g.limit
			long()
			continue
		}
		g.sleep.wait(bell, seen, min(g.limit-waited, pause))
	}
}

// why is what a rank returns that waited when the group broke.
func (g *sharedGroup) why() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look()
	return g.verdict
}
