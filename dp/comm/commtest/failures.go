package commtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/dp/comm"
)

var errTest = errors.New("the card fell off")

// testFailures breaks groups in every way, with the last rank as the one that does it, and checks what all get.
func testFailures(t *testing.T, open Open, world int, is func(err, target error) bool) {
	last := world - 1
	ctx := t.Context()
	buf := func() []float32 { return make([]float32, 100) }

	// broken checks that err is a BrokenError by that rank that wraps cause.
	broken := func(t *testing.T, r int, err error, by int, cause error) {
		t.Helper()
		var b *comm.BrokenError
		if !errors.As(err, &b) || b.Rank != by || !is(err, cause) {
			t.Errorf("rank %d: %v; want a BrokenError by rank %d that wraps %q", r, err, by, cause)
		}
	}
	// later checks that the group stays broken, all sizes of it.
	later := func(t *testing.T, group []comm.Comm, cause error) {
		t.Helper()
		for r, err := range each(group, func(c comm.Comm) error { return c.AllReduce(ctx, buf()) }) {
			var b *comm.BrokenError
			if !errors.As(err, &b) || !is(err, cause) {
				t.Errorf("rank %d: a later call gave %v; want a BrokenError that wraps %q", r, err, cause)
			}
			if err := group[r].Err(); !errors.As(err, &b) || !is(err, cause) {
				t.Errorf("rank %d: Err is %v; want a BrokenError that wraps %q", r, err, cause)
			}
		}
		sub, err := group[0].Sub(1)
		if err == nil {
			err = sub.Barrier(ctx)
		}
		if !is(err, cause) {
			t.Errorf("rank 0: a later call in a group of one gave %v; want an error that wraps %q", err, cause)
		}
	}

	t.Run("Abort", func(t *testing.T) {
		group := open(t, world)
		for r, c := range group {
			if err := c.Err(); err != nil {
				t.Errorf("rank %d: Err of a whole group is %v", r, err)
			}
		}
		for r, err := range each(group, func(c comm.Comm) error {
			if c.Rank() == last {
				c.Abort(errTest)
				c.Abort(errors.New("a second cause"))
			}
			return c.AllReduce(ctx, buf())
		}) {
			broken(t, r, err, last, errTest)
		}
		later(t, group, errTest)
	})

	t.Run("AbortWithoutCause", func(t *testing.T) {
		group := open(t, world)
		group[last].Abort(nil)
		var b *comm.BrokenError
		if err := group[0].Barrier(ctx); !errors.As(err, &b) || b.Cause == nil {
			t.Errorf("got %v; want a BrokenError with a cause", err)
		}
	})

	t.Run("Close", func(t *testing.T) {
		group := open(t, world)
		for r, err := range each(group, func(c comm.Comm) error {
			// What all have joined ends well even if a rank closes at once.
			if err := c.AllReduce(ctx, buf()); err != nil {
				return fmt.Errorf("before closing: %v", err) //nolint:errorlint // must not pass for the error that is due below
			}
			if c.Rank() == last {
				if err := errors.Join(c.Close(), c.Close()); err != nil {
					return err
				}
			}
			return c.Barrier(ctx)
		}) {
			broken(t, r, err, last, comm.ErrClosed)
		}
		later(t, group, comm.ErrClosed)
	})

	t.Run("CloseSub", func(t *testing.T) {
		group := open(t, world)
		if world == 1 {
			return // the sub-group is the group
		}
		sub, err := group[0].Sub(1)
		if err != nil {
			t.Fatal(err)
		}
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		must(t, each(group, func(c comm.Comm) error { return c.Barrier(ctx) }))
	})

	t.Run("ContextEnded", func(t *testing.T) {
		group := open(t, world)
		ended, end := context.WithCancelCause(ctx)
		end(errTest)
		for r, err := range each(group, func(c comm.Comm) error {
			if c.Rank() == last {
				return c.AllReduce(ended, buf())
			}
			return c.AllReduce(ctx, buf())
		}) {
			if !errors.Is(err, context.Canceled) || !is(err, errTest) {
				t.Errorf("rank %d: %v; want context.Canceled and its cause", r, err)
			}
			if r != last {
				broken(t, r, err, last, errTest)
			}
		}
		later(t, group, context.Canceled)
	})

	for name, args := range map[string]func(c comm.Comm) error{
		"Root":        func(c comm.Comm) error { return c.Broadcast(ctx, buf(), world) },
		"NoRoot":      func(c comm.Comm) error { return c.Reduce(ctx, buf(), -1) },
		"Counts":      func(c comm.Comm) error { return c.Scatter(ctx, nil, nil, make([]int, world+1), 0) },
		"Negative":    func(c comm.Comm) error { return c.Gather(ctx, nil, nil, slices.Repeat([]int{-1}, world), 0) },
		"Destination": func(c comm.Comm) error { return c.Scatter(ctx, buf(), nil, make([]int, world), 0) },
		"Whole":       func(c comm.Comm) error { return c.Gather(ctx, buf(), nil, make([]int, world), c.Rank()) },
	} {
		t.Run("Argument"+name, func(t *testing.T) {
			group := open(t, world)
			for r, err := range each(group, func(c comm.Comm) error {
				if c.Rank() == last {
					return args(c)
				}
				return c.Barrier(ctx)
			}) {
				var a *comm.ArgumentError
				if !errors.As(err, &a) || a.Rank != last {
					t.Errorf("rank %d: %v; want an ArgumentError of rank %d", r, err, last)
				}
				if r != last {
					broken(t, r, err, last, a)
				}
			}
		})
	}

	if world == 1 {
		return
	}

	t.Run("ContextEnds", func(t *testing.T) {
		group := open(t, world)
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		for r, err := range each(group, func(c comm.Comm) error {
			if c.Rank() == last { // does not come
				cancel()
				return context.Canceled
			}
			return c.AllReduce(inner, buf())
		}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("rank %d: %v; want context.Canceled", r, err)
			}
		}
		later(t, group, context.Canceled)
	})

	counts := func(last int) []int {
		n := make([]int, world)
		n[world-1] = last
		return n
	}
	for name, calls := range map[string][2]func(c comm.Comm) error{ // of the last rank, and of the others
		"Op": {
			func(c comm.Comm) error { return c.AllGather(ctx, buf()) },
			func(c comm.Comm) error { return c.AllReduce(ctx, buf()) },
		},
		"Length": {
			func(c comm.Comm) error { return c.AllReduce(ctx, buf()[:99]) },
			func(c comm.Comm) error { return c.AllReduce(ctx, buf()) },
		},
		"Root": {
			func(c comm.Comm) error { return c.Broadcast(ctx, buf(), 1) },
			func(c comm.Comm) error { return c.Broadcast(ctx, buf(), 0) },
		},
		"Counts": {
			func(c comm.Comm) error { return c.Scatter(ctx, buf()[:2], nil, counts(2), 0) },
			func(c comm.Comm) error { return c.Scatter(ctx, nil, buf()[:3], counts(3), 0) },
		},
	} {
		if name == "Counts" && world > 2 {
			continue // only the root has a whole
		}
		t.Run("Mismatch"+name, func(t *testing.T) {
			group := open(t, world)
			var mismatch *comm.MismatchError
			named := false
			for r, err := range each(group, func(c comm.Comm) error {
				if c.Rank() == last {
					return calls[0](c)
				}
				return calls[1](c)
			}) {
				if !errors.As(err, &mismatch) {
					t.Fatalf("rank %d: %v; want a MismatchError", r, err)
				}
			}
			for _, c := range mismatch.Calls {
				named = named || c.Rank == last
			}
			if !named || len(mismatch.Calls) < 2 {
				t.Errorf("%v: does not name rank %d and another one", mismatch, last)
			}
			later(t, group, mismatch)
		})
	}

	t.Run("MismatchGroup", func(t *testing.T) {
		group := open(t, world)
		for r, err := range each(group, func(c comm.Comm) error {
			if c.Rank() > 0 {
				return c.Barrier(ctx)
			}
			sub, err := c.Sub(2)
			if err != nil {
				return err
			}
			if world == 2 { // the same group under another name
				err = sub.AllReduce(ctx, buf())
			} else {
				err = sub.Barrier(ctx)
			}
			return err
		}) {
			var mismatch *comm.MismatchError
			if !errors.As(err, &mismatch) {
				t.Errorf("rank %d: %v; want a MismatchError", r, err)
			}
		}
	})
}
