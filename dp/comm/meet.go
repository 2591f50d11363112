package comm

import (
	"context"
	"slices"
)

// How ranks meet
//
// A call has two meetings. In the first (meet) each rank says what it calls and waits until all have; each compares
// its call with those of the ranks before it, and the last to come lets the others go. This one can fail, and whether it does is decided under group.mu: by the
// last to come, or by a rank that gives up, or by Abort, whoever is first. So all ranks go on or none does, and a
// rank that returns an error knows that no other touches its buffers.
//
// In the second (leave) each waits until all have done their part. Nothing there can fail: the others are only adding and
// copying. So it waits for neither context nor limit, and a call that has begun ends well.

// The states of a rank's end. Its own goroutine goes from idle to waiting to sleeping; the one that lets it go writes the rest.
const (
	idle     = iota // in no call
	waiting         // looks at its state
	sleeping        // waits for a token
	begun           // all have arrived: do your part
	finished        // all parts are done
)

// spins is how often a waiting rank looks at its state before it sleeps: a microsecond or two. Waking it takes longer.
const spins = 4000

// meet waits until all ranks of the team have made the same call. It returns begun, or finished if there is nothing left to do.
func (l *local) meet(ctx context.Context, c Call, buf, src []float32) (state uint32, err error) {
	t, g := l.team, l.team.group
	g.mu.Lock()
	if g.cause != nil {
		err := g.cause
		g.mu.Unlock()
		return 0, err
	}
	if l.state.Load() != idle {
		g.mu.Unlock()
		return 0, l.busy(c.Op)
	}
	l.call, l.buf, l.src = c, buf, src
	l.arrived = true
	l.state.Store(waiting)
	t.arrived++
	if err := t.compare(l); err != nil {
		g.failAll(err)
		g.mu.Unlock()
		return 0, err
	}
	if t.arrived < len(t.ends) {
		g.mu.Unlock()
		return l.await(ctx)
	}
	t.arrived = 0
	for _, e := range t.ends {
		e.arrived = false
	}
	state = begun
	if t.size(&c) <= small {
		for r := range t.ends {
			t.work(r, l.scratch)
		}
		state = finished
	}
	t.working.Store(int32(len(t.ends)))
	t.release(l, state)
	g.mu.Unlock()
	return state, nil
}

// compare returns an error if the call of l, which has just arrived, does not go together with the calls of those that wait.
func (t *team) compare(l *local) error {
	for _, e := range t.ends {
		if e.arrived && !e.call.same(l.call) {
			return mismatch(t.calls())
		}
	}
	// A rank that waits for l in another team can't come to this one: neither call would ever end.
	for _, other := range t.group.teams {
		if other == nil || other == t || other.arrived == 0 || l.rank >= len(other.ends) {
			continue
		}
		for _, e := range other.ends[:min(len(other.ends), len(t.ends))] {
			if e.arrived {
				return mismatch(append(other.calls(), t.calls()...))
			}
		}
	}
	return nil
}

func mismatch(calls []Call) error {
	slices.SortFunc(calls, func(a, b Call) int { return a.Rank - b.Rank })
	return &MismatchError{Calls: calls}
}

// calls are those of the ranks that have arrived.
func (t *team) calls() []Call {
	var all []Call
	for _, e := range t.ends {
		if e.arrived {
			c := e.call
			c.Counts = slices.Clone(c.Counts) // the caller's
			all = append(all, c)
		}
	}
	return all
}

// missing are the ranks that have not arrived.
func (t *team) missing() []int {
	var ranks []int
	for r, e := range t.ends {
		if !e.arrived {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// release lets all ranks but l go on in the given state.
func (t *team) release(l *local, state uint32) {
	for _, e := range t.ends {
		if e != l && e.state.Swap(state) == sleeping {
			e.wake <- struct{}{}
		}
	}
}

// leave waits until all ranks have done their part.
func (l *local) leave() {
	l.state.Store(waiting) // before others can see this rank done, and let it go
	if l.team.working.Add(-1) == 0 {
		l.team.release(l, finished)
		return
	}
	if l.spin() || !l.state.CompareAndSwap(waiting, sleeping) {
		return
	}
	<-l.wake
}

// await waits to be let go, the context to end, the group to break, or the limit to pass.
func (l *local) await(ctx context.Context) (state uint32, err error) {
	if l.spin() || !l.state.CompareAndSwap(waiting, sleeping) {
		return l.state.Load(), nil
	}
	t, g := l.team, l.team.group
	l.timer.Reset(g.limit)
	defer l.timer.Stop()
	late := false
	select {
	case <-l.wake:
		return l.state.Load(), nil
	case <-g.broken:
	case <-ctx.Done():
	case <-l.timer.C:
		late = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case l.state.Load() != sleeping: // let go in the meantime
		<-l.wake
		return l.state.Load(), nil
	case g.cause != nil:
		return 0, g.verdict
	case late:
		err = &TimeoutError{Op: l.call.Op, Limit: g.limit, Missing: t.missing()}
		g.failAll(err)
	default:
		err = l.ended(ctx, l.call.Op, t.missing())
		g.fail(l.rank, err)
	}
	return 0, err
}

// spin looks whether the rank has been let go, for a short time.
func (l *local) spin() bool {
	for range l.team.spins {
		if l.state.Load() != waiting {
			return true
		}
	}
	return false
}

// fail breaks the group because of what happened on one rank. g.mu is held.
func (g *group) fail(rank int, cause error) {
	if g.cause != nil {
		return
	}
	if cause == nil {
		cause = noCause(rank)
	}
	g.cause = &BrokenError{Rank: rank, Cause: cause}
	g.verdict = g.cause
	close(g.broken)
}

// failAll breaks the group because of something between ranks: those that wait get the cause itself. g.mu is held.
func (g *group) failAll(cause error) {
	if g.cause == nil {
		g.fail(-1, cause)
		g.verdict = cause
	}
}
