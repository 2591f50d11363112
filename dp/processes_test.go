package dp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/job"
	"github.com/tandem-train/tandem/nn"
)

// meeting is where the ranks of a test, each a trainer of its own, make their groups. Ranks that are processes meet in package comm.
type meeting struct {
	mu     sync.Mutex
	world  int
	came   int
	facts  [][]comm.Fact
	group  []comm.Comm
	err    error
	opened chan struct{}
}

func newMeeting(world int) *meeting {
	return &meeting{world: world, facts: make([][]comm.Fact, world), opened: make(chan struct{})}
}

// end is one rank's.
type end struct {
	*meeting
	rank int
}

func (e end) Rank() int { return e.rank }
func (e end) Size() int { return e.world }

func (e end) NewGroup(ctx context.Context, facts []comm.Fact) (comm.Comm, error) {
	e.mu.Lock()
	e.facts[e.rank] = facts
	opened := e.opened
	if e.came++; e.came == e.world {
		e.err = nil
		for r, f := range e.facts {
			if !slices.Equal(f, e.facts[0]) {
				e.err = fmt.Errorf("rank %d disagrees", r)
			}
		}
		if e.err == nil {
			e.group, e.err = comm.NewLocal(e.world)
		}
		e.came, e.opened = 0, make(chan struct{})
		close(opened)
	}
	e.mu.Unlock()
	select {
	case <-opened:
		if e.err != nil {
			return nil, e.err
		}
		return e.group[e.rank], nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// together runs f as each of the ranks of a job, on the host, and returns their errors.
func together(t *testing.T, world int, tk task, f func(d *dp.DataParallel) error, opts ...dp.Option) []error {
	t.Helper()
	cudaopstest.Setup(t, "", "")
	m := newMeeting(world)
	errs := make([]error, world)
	var ranks sync.WaitGroup
	for r := range world {
		ranks.Go(func() {
			d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat([]dp.Option{dp.Seed(3), dp.WithSession(end{m, r})}, tk.opts, opts)...)
			if err != nil {
				errs[r] = err
				return
			}
			errs[r] = errors.Join(f(d), d.Close())
		})
	}
	ranks.Wait()
	return errs
}

// allWell fails the test if a rank has failed.
func allWell(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

// batches are as many of n samples each.
func batches(tk task, steps, n int) (x, y []*tensor.Dense) {
	rng := rand.New(rand.NewPCG(11, 7))
	for range steps {
		bx, by := batchOf(rng, n, tk.in, tk.out)
		x, y = append(x, bx), append(y, by)
	}
	return x, y
}

// part is some of a batch's samples: nil for none.
func part(x *tensor.Dense, r data.Range) tensor.Tensor {
	if r.Len() == 0 {
		return nil
	}
	v, err := x.Slice(tensor.S(r.Lo, r.Hi))
	if err != nil {
		panic(err)
	}
	shape := x.Shape().Clone()
	shape[0] = r.Len() // a slice of one sample has lost the dimension
	dense := v.Materialize().(*tensor.Dense)
	if err := dense.Reshape(shape...); err != nil {
		panic(err)
	}
	return dense
}

// alone trains one rank on the whole batches.
func alone(t *testing.T, tk task, x, y []*tensor.Dense) result {
	t.Helper()
	var r result
	allWell(t, together(t, 1, tk, func(d *dp.DataParallel) error {
		for i := range x {
			loss, err := d.Step(t.Context(), x[i], y[i])
			if err != nil {
				return err
			}
			r.losses = append(r.losses, loss)
		}
		r.params = state(t, d)
		return nil
	}, dp.Alone()))
	return r
}

// sameTraining compares what training came to with one rank's.
func sameTraining(t *testing.T, got, want result) {
	t.Helper()
	if len(got.losses) != len(want.losses) {
		t.Fatalf("%d losses, want %d", len(got.losses), len(want.losses))
	}
	for i, loss := range got.losses {
		if d := loss - want.losses[i]; !(d < 1e-5 && d > -1e-5) {
			t.Errorf("loss %d is %v, on one rank %v", i, loss, want.losses[i])
		}
	}
	if d := apart(got.params, want.params); !(d < 1e-5) {
		t.Errorf("parameters are %.2g apart", d)
	}
}

// TestProcessesEqualOneCard trains each task as several processes, fed in every way.
func TestProcessesEqualOneCard(t *testing.T) {
	for _, tk := range tasks() {
		x, y := batches(tk, 6, 9)
		want := alone(t, tk, x, y)
		for _, world := range []int{2, 4} {
			for _, strategy := range strategies {
				for _, feed := range []string{"scatter", "shard", "scatter ahead", "shard ahead", "uploaded"} {
					t.Run(fmt.Sprintf("%s/%d/%v/%s", tk.name, world, strategy, feed), func(t *testing.T) {
						results := make([]result, world)
						allWell(t, together(t, world, tk, func(d *dp.DataParallel) error {
							r := d.Rank()
							var late []*dp.Loss
							for i := range x {
								var bx, by tensor.Tensor
								if r == 0 {
									bx, by = x[i], y[i]
								}
								mine := data.Chunk(9, world, r)
								sx, sy := part(x[i], mine), part(y[i], mine)
								var l *dp.Loss
								var loss float64
								var err error
								switch feed {
								case "scatter":
									loss, err = d.Step(t.Context(), bx, by)
								case "shard":
									loss, err = d.StepShard(t.Context(), sx, sy)
								case "scatter ahead":
									l, err = d.StepAsync(t.Context(), bx, by)
								case "shard ahead":
									l, err = d.StepShardAsync(t.Context(), sx, sy)
								case "uploaded":
									var b *dp.Batch
									if b, err = d.Upload(sx, sy); err != nil {
										return err
									}
									defer func() {
										if err := b.Free(); err != nil {
											t.Error(err)
										}
									}()
									l, err = d.StepBatch(t.Context(), b)
								}
								if err != nil {
									return err
								}
								results[r].losses = append(results[r].losses, loss)
								late = append(late, l)
							}
							for i, l := range late {
								var err error
								if l == nil {
									continue
								}
								if results[r].losses[i], err = l.Value(); err != nil {
									return err
								}
							}
							results[r].params = state(t, d)
							return nil
						}, dp.WithStrategy(strategy), dp.WrapDevices(func(d ir.Device) ir.Device { return runsAhead{d, new(flight)} })))
						for _, r := range results {
							sameTraining(t, r, want)
							if !slices.Equal(r.params, results[0].params) {
								t.Error("ranks have different parameters")
							}
						}
					})
				}
			}
		}
	}
}

// TestUnevenData: the ranks have 1, 5, 3 and 0 batches of their own, of sizes of their own. Those that have no more wait in Join or Forward,
// and the losses are those of one card on what was left each time.
func TestUnevenData(t *testing.T) {
	for _, tk := range tasks() {
		const world = 4
		count, size := [world]int{1, 5, 3, 0}, [world]int{4, 2, 3, 1}
		var x, y []*tensor.Dense // of each step, the shares of all ranks joined
		var shares [][world]data.Range
		rng := rand.New(rand.NewPCG(17, 1))
		for i := range 5 {
			var s [world]data.Range
			n := 0
			for r := range world {
				s[r] = data.Range{Lo: n, Hi: n}
				if i < count[r] {
					n += size[r]
					s[r].Hi = n
				}
			}
			bx, by := batchOf(rng, n, tk.in, tk.out)
			x, y, shares = append(x, bx), append(y, by), append(shares, s)
		}
		want := alone(t, tk, x, y)
		for _, wait := range []string{"Join", "Forward"} {
			for _, micro := range []int{1, 2} {
				if micro > 1 && tk.name == "synchronised batch norm" {
					continue // a part's statistics are not the batch's
				}
				t.Run(fmt.Sprintf("%s/%s/%d", tk.name, wait, micro), func(t *testing.T) {
					results := make([]result, world)
					allWell(t, together(t, world, tk, func(d *dp.DataParallel) error {
						r := d.Rank()
						for i := range count[r] {
							loss, err := d.StepShard(t.Context(), part(x[i], shares[i][r]), part(y[i], shares[i][r]))
							if err != nil {
								return err
							}
							results[r].losses = append(results[r].losses, loss)
						}
						var err error
						if wait == "Join" {
							err = d.Join(t.Context())
						} else if r == 0 {
							_, err = d.Forward(t.Context(), x[0])
						} else {
							_, err = d.Forward(t.Context(), nil)
						}
						if d.Steps() != 5 {
							t.Errorf("rank %d did %d steps", r, d.Steps())
						}
						results[r].params = state(t, d)
						return err
					}, dp.MicroBatches(micro)))
					sameTraining(t, results[1], want)
					for _, r := range results {
						if !slices.Equal(r.params, results[1].params) {
							t.Error("ranks have different parameters")
						}
					}
				})
			}
		}
	}
}

// tagged is a context that Go can't compare with another of its type.
type tagged struct {
	context.Context
	tags []string
}

func TestContextOfAnyType(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 3, 8)
	allWell(t, together(t, 2, tk, func(d *dp.DataParallel) error {
		for i := range x {
			if _, err := d.Step(tagged{t.Context(), []string{"a"}}, x[i], y[i]); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestEndOfBatches: rank 0 decides how many batches there are.
func TestEndOfBatches(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 3, 8)
	logits := make([]*tensor.Dense, 3)
	allWell(t, together(t, 3, tk, func(d *dp.DataParallel) error {
		if d.Rank() == 0 {
			for i := range x {
				if _, err := d.Step(t.Context(), x[i], y[i]); err != nil {
					return err
				}
			}
		} else {
			for {
				if _, err := d.Step(t.Context(), nil, nil); errors.Is(err, dp.ErrEnd) {
					break
				} else if err != nil {
					return err
				}
			}
		}
		var in tensor.Tensor
		if d.Rank() == 0 {
			in = x[0]
		}
		out, err := d.Forward(t.Context(), in)
		logits[d.Rank()] = out
		if d.Steps() != 3 {
			t.Errorf("rank %d did %d steps, want 3", d.Rank(), d.Steps())
		}
		return err
	}))
	if logits[0] == nil || !slices.Equal(logits[0].Shape(), []int{8, 5}) || logits[1] != nil || logits[2] != nil {
		t.Errorf("Forward gave %v, want [8 5] on rank 0 alone", logits)
	}
}

// TestForwardOfProcesses gathers what one card computes.
func TestForwardOfProcesses(t *testing.T) {
	tk := tasks()[0]
	for _, n := range []int{1, 2, 7, 12} {
		x, _ := batches(tk, 1, n)
		var want, got []float32
		forward := func(d *dp.DataParallel, into *[]float32) error {
			var in tensor.Tensor
			if d.Rank() == 0 {
				in = x[0]
			}
			for range 2 {
				out, err := d.Forward(t.Context(), in)
				if err != nil {
					return err
				}
				if d.Rank() == 0 {
					*into = out.Data().([]float32)
				}
			}
			return nil
		}
		allWell(t, together(t, 1, tk, func(d *dp.DataParallel) error { return forward(d, &want) }, dp.Alone()))
		allWell(t, together(t, 4, tk, func(d *dp.DataParallel) error { return forward(d, &got) }))
		if len(got) != len(want) || !(apart(got, want) < 1e-6) {
			t.Errorf("%d samples: got %v, want %v", n, got, want)
		}
	}
}

// TestDimOfProcesses scatters along the second dimension.
func TestDimOfProcesses(t *testing.T) {
	tk := task{model: func() nn.Module { return &sideways{nn.Linear(4, 3)} }, loss: func() nn.Loss { return nn.MSE() },
		opt: func() nn.Optimizer { return nn.SGD(0.1) }, opts: []dp.Option{dp.Dim(1)}}
	rng := rand.New(rand.NewPCG(1, 2))
	x, y := tensor.New(tensor.WithShape(4, 7), tensor.Of(tensor.Float32)), tensor.New(tensor.WithShape(3, 7), tensor.Of(tensor.Float32))
	for _, m := range []*tensor.Dense{x, y} {
		for i := range m.Float32s() {
			m.Float32s()[i] = float32(rng.NormFloat64())
		}
	}
	var got, want result
	run := func(d *dp.DataParallel, into *result) error {
		for range 3 {
			var bx, by tensor.Tensor
			if d.Rank() == 0 {
				bx, by = x, y
			}
			loss, err := d.Step(t.Context(), bx, by)
			if err != nil {
				return err
			}
			if d.Rank() == 0 {
				into.losses = append(into.losses, loss)
			}
		}
		if d.Rank() == 0 {
			into.params = state(t, d)
		}
		return nil
	}
	allWell(t, together(t, 1, tk, func(d *dp.DataParallel) error { return run(d, &want) }, dp.Alone()))
	allWell(t, together(t, 3, tk, func(d *dp.DataParallel) error { return run(d, &got) }))
	sameTraining(t, got, want)
}

// TestAllStopTogether: the context of one rank ends. All ranks end at the same step, and can go on.
func TestAllStopTogether(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 1, 8)
	const world = 3
	var steps [world]int
	allWell(t, together(t, world, tk, func(d *dp.DataParallel) error {
		r := d.Rank()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		mine := data.Chunk(8, world, r)
		for {
			if r == 1 && d.Steps() == 4 {
				cancel()
			}
			_, err := d.StepShard(ctx, part(x[0], mine), part(y[0], mine))
			if errors.Is(err, context.Canceled) {
				var stopped *dp.StoppedError
				if r == 1 == errors.As(err, &stopped) || r != 1 && stopped.Rank != 1 {
					t.Errorf("rank %d ended with %v", r, err)
				}
				break
			}
			if err != nil {
				return err
			}
		}
		steps[r] = d.Steps()
		_, err := d.StepShard(t.Context(), part(x[0], mine), part(y[0], mine))
		return err
	}))
	if steps != [world]int{4, 4, 4} {
		t.Errorf("ranks ended after %v steps, want 4 each", steps)
	}
}

// TestProcessesSurviveAnError: a wrong label on one rank ends the step of all, with parameters as they were; then all go on.
func TestProcessesSurviveAnError(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 4, 8)
	want := alone(t, tk, x, y)
	for _, feed := range []string{"scatter", "shard"} {
		t.Run(feed, func(t *testing.T) {
			const world, bad = 3, 1
			results := make([]result, world)
			allWell(t, together(t, world, tk, func(d *dp.DataParallel) error {
				r := d.Rank()
				step := func(bx, by *tensor.Dense) (float64, error) {
					if feed == "shard" {
						mine := data.Chunk(8, world, r)
						return d.StepShard(t.Context(), part(bx, mine), part(by, mine))
					}
					if r > 0 {
						return d.Step(t.Context(), nil, nil)
					}
					return d.Step(t.Context(), bx, by)
				}
				for i := range x {
					if i == 2 {
						wrong := y[i].Clone().(*tensor.Dense)
						at, by := 3, bad // of rank 1's share
						if feed == "scatter" {
							by = 0
						}
						wrong.Int32s()[at] = 99
						_, err := step(x[i], wrong)
						var index *dp.IndexError
						var broken *comm.BrokenError
						if r == by && !errors.As(err, &index) || r != by && (!errors.As(err, &broken) || broken.Rank != by) {
							t.Errorf("rank %d: %v", r, err)
						}
					}
					loss, err := step(x[i], y[i])
					if err != nil {
						return err
					}
					results[r].losses = append(results[r].losses, loss)
				}
				results[r].params = state(t, d)
				return nil
			}))
			for _, r := range results {
				sameTraining(t, r, want)
			}
		})
	}
}

// TestDifferentCalls are refused on every rank.
func TestDifferentCalls(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 1, 4)
	for r, err := range together(t, 2, tk, func(d *dp.DataParallel) error {
		if d.Rank() == 0 {
			_, err := d.Step(t.Context(), x[0], y[0])
			return err
		}
		_, err := d.StepShard(t.Context(), x[0], y[0])
		return err
	}) {
		var calls *dp.CallsError
		if !errors.As(err, &calls) || !slices.Equal(calls.Calls, []string{"Step", "StepShard"}) {
			t.Errorf("rank %d: %v, want a CallsError", r, err)
		}
	}
}

// TestReplicasStartAsRankZero: the others' values don't count, at the start and when a state is loaded.
func TestReplicasStartAsRankZero(t *testing.T) {
	tk := tasks()[4]
	var states [2][][]float32
	allWell(t, together(t, 2, task{model: tk.model, loss: tk.loss, opt: tk.opt}, func(d *dp.DataParallel) error {
		r := d.Rank()
		states[r] = append(states[r], state(t, d))
		sd, err := d.StateDict()
		if err != nil {
			return err
		}
		var load *nn.State
		if r == 0 {
			for _, v := range sd.All() {
				for i := range v.Float32s() {
					v.Float32s()[i] = float32(i % 5)
				}
			}
			load = sd
		}
		if err := d.LoadStateDict(load, true); err != nil {
			return err
		}
		states[r] = append(states[r], state(t, d))
		return nil
	}))
	for i := range states[0] {
		if !slices.Equal(states[0][i], states[1][i]) {
			t.Errorf("states %d differ", i)
		}
	}
	if slices.Equal(states[0][0], states[0][1]) {
		t.Error("loading changed nothing")
	}
}

// counted counts the broadcasts of a rank.
type counted struct {
	comm.Comm
	broadcasts *int
}

func (c counted) Broadcast(ctx context.Context, buf []float32, root int) error {
	*c.broadcasts++
	return c.Comm.Broadcast(ctx, buf, root)
}

// countedEnd is an end whose groups count their broadcasts.
type countedEnd struct {
	end
	broadcasts *int
}

func (e countedEnd) NewGroup(ctx context.Context, facts []comm.Fact) (comm.Comm, error) {
	c, err := e.end.NewGroup(ctx, facts)
	return counted{c, e.broadcasts}, err
}

// TestValuesAtTheStart: where ranks bring other values than rank 0, one parameter or one buffer is enough, they get its; where all have the same,
// nothing is sent.
func TestValuesAtTheStart(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	for name, changed := range map[string]string{"the same": "", "another weight": "0.weight", "another running variance": "1.running_var"} {
		t.Run(name, func(t *testing.T) {
			m := newMeeting(2)
			var states [2][]float32
			var broadcasts [2]int
			var ranks sync.WaitGroup
			for r := range 2 {
				ranks.Go(func() {
					model := nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
					err := nn.Initialize(model, 3)
					if err != nil {
						t.Error(err)
						return
					}
					sd, err := nn.StateDict(model)
					if err != nil {
						t.Error(err)
						return
					}
					for key, v := range sd.All() {
						if r == 1 && key == changed {
							v.Float32s()[1]++
						}
					}
					if err := nn.LoadStateDict(model, sd, true); err != nil {
						t.Error(err)
						return
					}
					d, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1), dp.WithSession(countedEnd{end{m, r}, &broadcasts[r]}))
					if err != nil {
						t.Error(err)
						return
					}
					states[r], err = stateOf(d)
					if err := errors.Join(err, d.Close()); err != nil {
						t.Error(err)
					}
				})
			}
			ranks.Wait()
			if !slices.Equal(states[0], states[1]) {
				t.Errorf("rank 0 begins with %v, rank 1 with %v", states[0], states[1])
			}
			if sent := broadcasts[0] > 0; sent != (changed != "") || broadcasts[0] != broadcasts[1] {
				t.Errorf("%d broadcasts by rank 0, %d by rank 1", broadcasts[0], broadcasts[1])
			}
		})
	}
}

// TestRanksThatDisagree at the start are told.
func TestRanksThatDisagree(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	m := newMeeting(2)
	var ranks sync.WaitGroup
	for r := range 2 {
		ranks.Go(func() {
			_, err := dp.New(mlp(), nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.5+0.1*float64(r))), dp.WithSession(end{m, r}))
			if err == nil {
				t.Errorf("rank %d trains with another momentum than the other", r)
			}
		})
	}
	ranks.Wait()
}

// TestTimeout: New waits for the other processes as long as it may, and names those that did not come.
func TestTimeout(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} {
		t.Setenv(name, value)
	}
	_, err = dp.New(mlp(), nn.CrossEntropy(), nn.SGD(0.1), dp.Timeout(50*time.Millisecond))
	var timeout *comm.TimeoutError
	if !errors.As(err, &timeout) || !slices.Equal(timeout.Missing, []int{1, 2}) || timeout.Limit != 50*time.Millisecond {
		t.Errorf("got %v, want a TimeoutError that misses ranks 1 and 2", err)
	}
	// A function of launcher.Spawn that was told to end before it came here.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	job.SetTold(ctx)
	defer job.SetTold(context.Background())
	if _, err := dp.New(mlp(), nn.CrossEntropy(), nn.SGD(0.1), dp.Timeout(50*time.Millisecond)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if _, err := dp.New(mlp(), nn.CrossEntropy(), nn.SGD(0.1), dp.Alone(), dp.Timeout(-time.Second)); err == nil {
		t.Error("a negative limit was taken")
	}
}

// TestIgnoredSignals: a program that ignores a signal still does after New, which takes signals while it waits for other processes.
func TestIgnoredSignals(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		signal.Ignore(sig)
		defer signal.Reset(sig)
		allWell(t, together(t, 2, tasks()[0], func(*dp.DataParallel) error { return nil }))
		if !signal.Ignored(sig) {
			t.Errorf("%v is not ignored any more", sig)
		}
	}
}

// TestProcessStepAllocatesNothing more than a step of one process.
func TestProcessStepAllocatesNothing(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 1, 8)
	const runs = 20
	allWell(t, together(t, 2, tk, func(d *dp.DataParallel) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		mine := data.Chunk(8, 2, d.Rank())
		bx, by := part(x[0], mine), part(y[0], mine)
		step := func() {
			if _, err := d.StepShard(ctx, bx, by); err != nil {
				t.Error(err)
			}
		}
		if d.Rank() == 1 { // counted on rank 0, as AllocsPerRun counts for the whole process
			for range runs + 1 {
				step()
			}
			return nil
		}
		if allocs := testing.AllocsPerRun(runs, step); allocs > 10 {
			t.Errorf("a step of two ranks allocates %v times", allocs)
		}
		return nil
	}))
}
