package comm_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-train/tandem/dp/comm"
)

// local makes a group inside of a synctest bubble.
func local(t *testing.T, world int, opts ...comm.Option) []comm.Comm {
	t.Helper()
	group, err := comm.NewLocal(world, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return group
}

// wait makes a call on the ranks given, and returns how long each took and what it got.
func wait(group []comm.Comm, ranks []int, call func(c comm.Comm) error) (took []time.Duration, errs []error) {
	took, errs = make([]time.Duration, len(ranks)), make([]error, len(ranks))
	done := make(chan struct{})
	for i, r := range ranks {
		go func() {
			start := time.Now()
			errs[i] = call(group[r])
			took[i] = time.Since(start)
			done <- struct{}{}
		}()
	}
	for range ranks {
		<-done
	}
	return took, errs
}

func TestTimeoutNamesMissingRanks(t *testing.T) {
	for _, tt := range []struct {
		world   int
		come    []int
		missing []int
		text    string
	}{
		{2, []int{0}, []int{1}, "comm: all_reduce: rank 1 did not come within 20s: find out what ended or delayed it, or set TANDEM_TIMEOUT to more"},
		{4, []int{1, 3}, []int{0, 2}, "comm: all_reduce: ranks 0, 2 did not come within 20s: find out what ended or delayed it, or set TANDEM_TIMEOUT to more"},
	} {
		synctest.Test(t, func(t *testing.T) {
			group := local(t, tt.world, comm.Timeout(20*time.Second))
			call := func(c comm.Comm) error { return c.AllReduce(context.Background(), make([]float32, 5)) }
			took, errs := wait(group, tt.come, call)
			for i, err := range errs {
				var timeout *comm.TimeoutError
				if !errors.As(err, &timeout) || !slices.Equal(timeout.Missing, tt.missing) || timeout.Op != comm.OpAllReduce || !timeout.Timeout() {
					t.Fatalf("rank %d: %v; want a TimeoutError that misses %v", tt.come[i], err, tt.missing)
				}
				var broken *comm.BrokenError
				if errors.As(err, &broken) {
					t.Errorf("rank %d waited and got %v; want the TimeoutError itself", tt.come[i], err)
				}
				if err.Error() != tt.text {
					t.Errorf("got  %s\nwant %s", err, tt.text)
				}
				if took[i] != 20*time.Second {
					t.Errorf("rank %d waited %v, want 20s", tt.come[i], took[i])
				}
			}
			// A rank that comes later, and the next call of the others, learn it at once.
			all := make([]int, tt.world)
			for r := range all {
				all[r] = r
			}
			took, later := wait(group, all, call)
			for r, err := range later {
				var broken *comm.BrokenError
				if !errors.As(err, &broken) || broken.Rank != -1 || !errors.Is(err, errs[0]) || took[r] != 0 {
					t.Errorf("rank %d: %v after %v; want at once a BrokenError that wraps the timeout", r, err, took[r])
				}
			}
		})
	}
}

// A limit counts from each wait anew, however long ranks compute in between.
func TestTimeoutCountsOneWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := local(t, 2, comm.Timeout(time.Minute))
		_, errs := wait(group, []int{0, 1}, func(c comm.Comm) error {
			for range 5 {
				time.Sleep(50 * time.Second * time.Duration(c.Rank()))
				if err := c.Barrier(context.Background()); err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
}

func TestDefaultTimeout(t *testing.T) {
	t.Setenv("TANDEM_TIMEOUT", "")
	synctest.Test(t, func(t *testing.T) {
		took, errs := wait(local(t, 2), []int{0}, func(c comm.Comm) error { return c.Barrier(context.Background()) })
		if took[0] != 5*time.Minute || errs[0] == nil {
			t.Errorf("%v after %v, want a timeout after 5m", errs[0], took[0])
		}
	})
}

func TestTimeoutVariable(t *testing.T) {
	t.Setenv("TANDEM_TIMEOUT", "90s")
	synctest.Test(t, func(t *testing.T) {
		barrier := func(c comm.Comm) error { return c.Barrier(context.Background()) }
		if took, _ := wait(local(t, 2), []int{0}, barrier); took[0] != 90*time.Second {
			t.Errorf("waited %v, want TANDEM_TIMEOUT's 90s", took[0])
		}
		if took, _ := wait(local(t, 2, comm.Timeout(time.Second)), []int{0}, barrier); took[0] != time.Second {
			t.Errorf("waited %v, want the option's 1s", took[0])
		}
	})
	for _, bad := range []string{"soon", "90", "-1s", "0s"} {
		t.Setenv("TANDEM_TIMEOUT", bad)
		_, err := comm.NewLocal(2)
		if err == nil || !strings.Contains(err.Error(), "TANDEM_TIMEOUT") || !strings.Contains(err.Error(), bad) {
			t.Errorf("TANDEM_TIMEOUT=%s gave error %v; want one that names both", bad, err)
		}
	}
}

// A context ends while ranks certainly wait: the one whose it is says so, the others are told.
func TestContextEndsWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := local(t, 3)
		took, errs := wait(group, []int{0, 2}, func(c comm.Comm) error {
			ctx := context.Background()
			if c.Rank() == 2 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Second)
				defer cancel()
			}
			return c.AllGather(ctx, make([]float32, 8))
		})
		var broken *comm.BrokenError
		if !errors.As(errs[0], &broken) || broken.Rank != 2 || !errors.Is(errs[0], context.DeadlineExceeded) || took[0] != time.Second {
			t.Errorf("rank 0: %v after %v; want a BrokenError by rank 2 after 1s", errs[0], took[0])
		}
		const want = "comm: rank 2: all_gather while waiting for rank 1: context deadline exceeded"
		if errs[1] == nil || errs[1].Error() != want || !errors.Is(errs[1], context.DeadlineExceeded) {
			t.Errorf("rank 2: %v; want %s", errs[1], want)
		}
	})
}

// Abort, from a goroutine of no rank, wakes ranks that certainly wait, in groups of different sizes.
func TestAbortWakesWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := local(t, 4)
		cause := errors.New("out of memory")
		go func() {
			time.Sleep(time.Second)
			group[0].Abort(cause)
		}()
		took, errs := wait(group, []int{1, 3}, func(c comm.Comm) error {
			if c.Rank() == 3 {
				return c.Barrier(context.Background())
			}
			sub, err := c.Sub(2)
			if err != nil {
				return err
			}
			return sub.Barrier(context.Background())
		})
		for i, err := range errs {
			if !errors.Is(err, cause) || took[i] != time.Second || err.Error() != "comm: group was broken by rank 0: out of memory" {
				t.Errorf("%v after %v; want the cause after 1s", err, took[i])
			}
		}
	})
}

// A second call of a rank that is in one already is refused, and does no harm to the first.
func TestTwoCallsOfOneRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := local(t, 2)
		first := make(chan error)
		go func() { first <- group[0].Barrier(context.Background()) }()
		synctest.Wait()
		var argument *comm.ArgumentError
		if err := group[0].AllReduce(context.Background(), nil); !errors.As(err, &argument) || argument.Rank != 0 {
			t.Errorf("a second call gave %v, want an ArgumentError", err)
		}
		if err := group[1].Barrier(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}
