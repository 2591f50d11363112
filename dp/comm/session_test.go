package comm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/job"
)

// places are those of a job of world processes on this host, at a port that was free a moment ago.
func places(t *testing.T, world int) []*job.Place {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	all := make([]*job.Place, world)
	for r := range all {
		all[r] = &job.Place{Rank: r, World: world, LocalRank: r, LocalWorld: world, Nodes: 1, Addr: "127.0.0.1", Port: port, Token: "secret", ListenFD: -1}
	}
	return all
}

// connectAll connects the processes of a job, which are goroutines here.
func connectAll(t *testing.T, places []*job.Place, opts ...comm.Option) []*comm.Session {
	t.Helper()
	sessions, errs := make([]*comm.Session, len(places)), make([]error, len(places))
	var ranks sync.WaitGroup
	for r, p := range places {
		ranks.Go(func() { sessions[r], errs[r] = comm.Connect(t.Context(), p, opts...) })
	}
	ranks.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, sessions) })
	return sessions
}

// closeAll closes sessions, at once as processes do.
func closeAll(t *testing.T, sessions []*comm.Session) {
	var ranks sync.WaitGroup
	for _, s := range sessions {
		ranks.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
}

// newGroup makes a group on all ranks. Facts may differ by rank.
func newGroup(ctx context.Context, sessions []*comm.Session, facts func(rank int) []comm.Fact) ([]comm.Comm, []error) {
	group, errs := make([]comm.Comm, len(sessions)), make([]error, len(sessions))
	var ranks sync.WaitGroup
	for r, s := range sessions {
		ranks.Go(func() { group[r], errs[r] = s.NewGroup(ctx, facts(r)) })
	}
	ranks.Wait()
	return group, errs
}

func noFacts(int) []comm.Fact { return nil }

// sum checks a group with an all-reduce.
func sum(ctx context.Context, group []comm.Comm) []error {
	errs := make([]error, len(group))
	var ranks sync.WaitGroup
	for r, c := range group {
		ranks.Go(func() {
			x := []float32{float32(r + 1)}
			if errs[r] = c.AllReduce(ctx, x); errs[r] == nil && x[0] != float32(len(group)*(len(group)+1)/2) {
				errs[r] = fmt.Errorf("the sum is %v", x)
			}
		})
	}
	ranks.Wait()
	return errs
}

func TestSession(t *testing.T) {
	for _, world := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("world=%d", world), func(t *testing.T) {
			sessions := connectAll(t, places(t, world))
			for r, s := range sessions {
				if s.Rank() != r || s.Size() != world {
					t.Errorf("session %d of %d is rank %d of %d", r, world, s.Rank(), s.Size())
				}
			}
			facts := func(int) []comm.Fact { return []comm.Fact{{"seed", "1"}} }
			first, errs := newGroup(t.Context(), sessions, facts)
			second, more := newGroup(t.Context(), sessions, facts)
			if err := errors.Join(append(errs, more...)...); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(sum(t.Context(), first)...); err != nil {
				t.Error(err)
			}
			// One group breaks; the other works, and a new one can be made.
			first[world-1].Abort(errors.New("no more"))
			if err := first[0].Barrier(t.Context()); err == nil {
				t.Error("the first group did not break")
			}
			if err := errors.Join(sum(t.Context(), second)...); err != nil {
				t.Error(err)
			}
			third, errs := newGroup(t.Context(), sessions, facts)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(sum(t.Context(), third)...); err != nil {
				t.Error(err)
			}
			// To close a session closes its groups.
			if err := sessions[world-1].Close(); err != nil {
				t.Error(err)
			}
			if world > 1 {
				if err := third[0].Barrier(t.Context()); !errors.Is(err, comm.ErrClosed) {
					t.Errorf("after rank %d closed its session: %v; want ErrClosed", world-1, err)
				}
				if _, err := sessions[0].NewGroup(t.Context(), nil); !errors.Is(err, comm.ErrClosed) {
					t.Errorf("a new group after rank %d closed its session: %v; want ErrClosed", world-1, err)
				}
			}
		})
	}
}

func TestDisagreement(t *testing.T) {
	common := []comm.Fact{{"version", "1.2"}, {"parameter 0.weight", "[512 784]"}, {"parameter 0.bias", "[512]"}}
	with := func(i int, f ...comm.Fact) []comm.Fact { return slices.Replace(slices.Clone(common), i, i+1, f...) }
	const cure = ": every rank must build the same model with the same settings"
	for name, tt := range map[string]struct {
		other []comm.Fact
		want  string
	}{
		"Value":   {with(1, comm.Fact{Name: "parameter 0.weight", Value: "[256 784]"}), "comm: ranks disagree: parameter 0.weight is [512 784] on rank 0 and [256 784] on rank 2" + cure},
		"Missing": {with(1), "comm: ranks disagree: parameter 0.weight is [512 784] on rank 0 and missing on rank 2" + cure},
		"Last":    {common[:2], "comm: ranks disagree: parameter 0.bias is [512] on rank 0 and missing on rank 2" + cure},
		"Extra":   {with(1, common[1], comm.Fact{Name: "parameter 1.weight", Value: "[3]"}), "comm: ranks disagree: parameter 1.weight is missing on rank 0 and [3] on rank 2" + cure},
		"Order":   {[]comm.Fact{common[0], common[2], common[1]}, "comm: ranks disagree: where rank 0 has parameter 0.weight, rank 2 has parameter 0.bias" + cure},
	} {
		t.Run(name, func(t *testing.T) {
			sessions := connectAll(t, places(t, 3))
			_, errs := newGroup(t.Context(), sessions, func(rank int) []comm.Fact {
				if rank == 2 {
					return tt.other
				}
				return common
			})
			for r, err := range errs {
				var d *comm.DisagreementError
				if !errors.As(err, &d) || d.Rank != 2 || err.Error() != tt.want {
					t.Errorf("rank %d: got  %v\nwant %s", r, err, tt.want)
				}
			}
			// They are still in step.
			group, errs := newGroup(t.Context(), sessions, noFacts)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(sum(t.Context(), group)...); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that ends without goodbye breaks the groups of all, and is named.
func TestLostRank(t *testing.T) {
	for _, victim := range []int{0, 2} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			sessions := connectAll(t, places(t, 4))
			group, errs := newGroup(t.Context(), sessions, noFacts)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			for r, c := range group {
				if r != victim {
					go func() { done <- c.Barrier(t.Context()) }()
				}
			}
			sessions[victim].Kill()
			for range len(group) - 1 {
				err := <-done
				var b *comm.BrokenError
				if !errors.As(err, &b) || b.Rank != victim || !strings.Contains(err.Error(), "process") {
					t.Errorf("%v; want a BrokenError by rank %d that names its process", err, victim)
				}
			}
			for r, s := range sessions {
				if r == victim {
					continue
				}
				_, err := s.NewGroup(t.Context(), nil)
				var b *comm.BrokenError
				if !errors.As(err, &b) || b.Rank != victim {
					t.Errorf("a new group on rank %d: %v; want a BrokenError by rank %d", r, err, victim)
				}
			}
		})
	}
}

func TestConnectTimeout(t *testing.T) {
	all := places(t, 4)
	for name, tt := range map[string]struct{ come, missing []int }{
		"Others": {[]int{0, 2}, []int{1, 3}},
		"Zero":   {[]int{1, 3}, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			errs := make(chan error)
			for _, r := range tt.come {
				go func() {
					_, err := comm.Connect(t.Context(), all[r], comm.Timeout(300*time.Millisecond))
					errs <- err
				}()
			}
			for range tt.come {
				err := <-errs
				var timeout *comm.TimeoutError
				if !errors.As(err, &timeout) || timeout.Op != comm.OpConnect || !slices.Equal(timeout.Missing, tt.missing) {
					t.Errorf("%v; want a TimeoutError that misses %v", err, tt.missing)
				}
			}
		})
	}
}

func TestNewGroupTimeout(t *testing.T) {
	sessions := connectAll(t, places(t, 3), comm.Timeout(300*time.Millisecond))
	_, errs := newGroup(t.Context(), []*comm.Session{sessions[0], sessions[2]}, noFacts)
	for _, err := range errs {
		var timeout *comm.TimeoutError
		if !errors.As(err, &timeout) || timeout.Op != comm.OpNewGroup {
			t.Errorf("%v; want a TimeoutError", err)
		}
	}
	// Who comes late hears of it at once.
	var timeout *comm.TimeoutError
	if _, err := sessions[1].NewGroup(t.Context(), nil); !errors.As(err, &timeout) {
		t.Errorf("rank 1, late: %v; want the others' TimeoutError", err)
	}
}

func TestNewGroupContext(t *testing.T) {
	sessions := connectAll(t, places(t, 3))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for _, r := range []int{0, 2} {
		c := t.Context()
		if r == 2 {
			c = ctx
		}
		go func() {
			_, err := sessions[r].NewGroup(c, nil)
			done <- err
		}()
	}
	cancel()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v; want context.Canceled", err)
		}
	}
}

func TestConnectContext(t *testing.T) {
	for _, rank := range []int{0, 1} {
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() {
			_, err := comm.Connect(ctx, places(t, 2)[rank])
			done <- err
		}()
		cause := errors.New("enough")
		cancel(cause)
		if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
			t.Errorf("rank %d: %v; want the context's error and cause", rank, err)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // a test's
	p := &job.Place{World: 2, Addr: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, ListenFD: -1}
	_, err = comm.Connect(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "MASTER_PORT") {
		t.Errorf("%v; want an error that names the address and MASTER_PORT", err)
	}
}

// TestFailureOfTheNextCall: rank 0 goes on to another call, and may fail there, while rank 1 still hears that the one before went well,
// or opens memory that is gone by then.
func TestFailureOfTheNextCall(t *testing.T) {
	sessions := connectAll(t, places(t, 2), comm.Timeout(2*time.Second))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 {
		var ranks sync.WaitGroup
		for r, s := range sessions {
			ranks.Go(func() {
				second := t.Context()
				if r == 0 {
					second = over
				}
				for call, ctx := range []context.Context{t.Context(), second} {
					group, err := s.NewGroup(ctx, nil)
					if err == nil {
						err = group.Close()
					}
					if err != nil && (call == 0 || !errors.Is(err, context.Canceled)) {
						t.Errorf("rank %d, call %d: %v", r, call, err)
					}
				}
			})
		}
		if ranks.Wait(); t.Failed() {
			return
		}
	}
}
