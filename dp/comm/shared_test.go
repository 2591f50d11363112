package comm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/dp/comm/commtest"
)

// openShared makes a group whose ranks share memory, closed when the test ends.
func openShared(t *testing.T, world int) []comm.Comm {
	t.Helper()
	group := comm.NewShared(t, world)
	t.Cleanup(func() {
		for _, c := range group {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return group
}

func TestShared(t *testing.T) { commtest.RunRemote(t, openShared) }

// calls are made by the ranks given; the result is by rank.
func calls(group []comm.Comm, ranks []int, call func(c comm.Comm) error) []error {
	errs := make([]error, len(group))
	var all sync.WaitGroup
	for _, r := range ranks {
		all.Go(func() { errs[r] = call(group[r]) })
	}
	all.Wait()
	return errs
}

func barrier(c comm.Comm) error { return c.Barrier(context.Background()) }

func closeGroup(t *testing.T, group []comm.Comm) {
	for _, c := range group {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSharedTimeout(t *testing.T) {
	group := comm.NewShared(t, 4, comm.Timeout(100*time.Millisecond))
	defer closeGroup(t, group)
	errs := calls(group, []int{1, 3}, barrier)
	const text = "comm: barrier: ranks 0, 2 did not come within 100ms: find out what ended or delayed it, or set TANDEM_TIMEOUT to more"
	for _, r := range []int{1, 3} {
		var timeout *comm.TimeoutError
		if !errors.As(errs[r], &timeout) || errs[r].Error() != text {
			t.Errorf("rank %d: got  %v\nwant %s", r, errs[r], text)
		}
	}
	for r, err := range calls(group, []int{0, 1, 2, 3}, barrier) {
		var broken *comm.BrokenError
		if !errors.As(err, &broken) || broken.Rank != -1 || !strings.Contains(err.Error(), text) {
			t.Errorf("rank %d, later: %v; want a BrokenError that wraps the timeout", r, err)
		}
	}
}

// A context ends when the wait for others is a long one already.
func TestSharedContextEndsLate(t *testing.T) {
	group := comm.NewShared(t, 3)
	defer closeGroup(t, group)
	errs := calls(group, []int{0, 2}, func(c comm.Comm) error {
		ctx := context.Background()
		if c.Rank() == 2 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
		}
		return c.Barrier(ctx)
	})
	const want = "comm: rank 2: barrier while waiting for rank 1: context deadline exceeded"
	if errs[2] == nil || errs[2].Error() != want || !errors.Is(errs[2], context.DeadlineExceeded) {
		t.Errorf("rank 2: got  %v\nwant %s", errs[2], want)
	}
	var broken *comm.BrokenError
	var remote *comm.RemoteError
	if !errors.As(errs[0], &broken) || broken.Rank != 2 || !errors.As(errs[0], &remote) || remote.Rank != 2 || !errors.Is(errs[0], context.DeadlineExceeded) {
		t.Errorf("rank 0: %v; want a BrokenError by rank 2 with a RemoteError", errs[0])
	}
}

// sleeps waits until a rank sleeps in its call.
func sleeps(c comm.Comm) {
	for !comm.Asleep(c) {
		runtime.Gosched()
	}
}

// A second call of a rank that is in one already is refused, and does no harm to the first. Nor does Close, for the memory stays
// until the call has ended.
func TestSharedCallInProgress(t *testing.T) {
	group := comm.NewShared(t, 2)
	defer closeGroup(t, group)
	first := make(chan error)
	go func() { first <- barrier(group[0]) }()
	sleeps(group[0])
	var argument *comm.ArgumentError
	if err := barrier(group[0]); !errors.As(err, &argument) || argument.Rank != 0 {
		t.Errorf("a second call gave %v, want an ArgumentError", err)
	}
	if err := barrier(group[1]); err != nil {
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}

	go func() { first <- barrier(group[0]) }()
	sleeps(group[0])
	closeGroup(t, group[:1])
	if err := <-first; !errors.Is(err, comm.ErrClosed) {
		t.Errorf("a call that waited when its rank closed: %v; want ErrClosed", err)
	}
	if comm.Mapped(group[0]) {
		t.Error("the memory is still mapped")
	}
	group[0].Abort(errors.New("late")) // must touch nothing
	comm.Lose(group[0], 1, errors.New("late"))
	if err := barrier(group[1]); !errors.Is(err, comm.ErrClosed) {
		t.Errorf("rank 1, later: %v; want ErrClosed", err)
	}
}

// A rank is gone in the middle of a call: the others do not wait for it, and say who it was.
func TestSharedRankGoneInCall(t *testing.T) {
	group := comm.NewShared(t, 3)
	defer closeGroup(t, group)
	long := make([][]float32, 3)
	for r := range long {
		long[r] = make([]float32, 1<<20)
	}
	in := make(chan struct{})
	var once sync.Once
	errs := make(chan error)
	for _, r := range []int{0, 2} {
		go func() {
			for {
				if err := group[r].AllReduce(context.Background(), long[r]); err != nil {
					errs <- err
					return
				}
				once.Do(func() { close(in) })
			}
		}()
	}
	go func() {
		for group[1].AllReduce(context.Background(), long[1]) == nil {
		}
		errs <- nil
	}()
	<-in
	comm.Lose(group[0], 1, errors.New("it fell over"))
	for range 3 {
		err := <-errs
		var broken *comm.BrokenError
		if err != nil && (!errors.As(err, &broken) || broken.Rank != 1 || !strings.Contains(err.Error(), "it fell over")) {
			t.Errorf("%v; want a BrokenError by rank 1", err)
		}
	}
}

// The largest group there may be makes random calls, in teams of many sizes.
func TestSharedLargestWorld(t *testing.T) {
	group := comm.NewShared(t, comm.MaxWorld)
	defer closeGroup(t, group)
	ranks := make([]int, len(group))
	for r := range ranks {
		ranks[r] = r
	}
	for r, err := range calls(group, ranks, func(c comm.Comm) error {
		rng := rand.New(rand.NewPCG(6, 0))
		for range 20 {
			if err := randomCall(c, rng); err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
