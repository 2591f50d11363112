package dp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// needCards skips a test where there are fewer CUDA cards.
func needCards(t testing.TB, n int) {
	t.Helper()
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	if len(cards) < n || cards[0].Simulated {
		t.Skipf("this takes %d CUDA cards", n)
	}
}

// warnings collects what a trainer warns of.
type warnings struct {
	mu sync.Mutex
	strings.Builder
}

func (w *warnings) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Builder.Write(p)
}

// TestCardsEqualOneInHalves: parameters that come from another card have a copy in halves made here, which products read. In bf16 gradients come from
// there as halves, too.
func TestCardsEqualOneInHalves(t *testing.T) {
	needCards(t, 2)
	twoRanksInHalves(t, tasks()[:1], 21, 1)
}

// TestCardsEqualOne: two cards, in one process and in two, give one card's numbers with every strategy, whatever the shares, and the same
// bits twice. They exchange by themselves.
func TestCardsEqualOne(t *testing.T) {
	needCards(t, 2)
	for _, tk := range tasks() {
		for _, n := range []int{33, 1} {
			one := train(t, tk, n, 3, dp.DeviceIDs(0))
			for _, s := range strategies {
				t.Run(fmt.Sprintf("%s/%d/%v", tk.name, n, s), func(t *testing.T) {
					said := new(warnings)
					opts := []dp.Option{dp.WithStrategy(s), dp.WithLogger(slog.New(slog.NewTextHandler(said, nil)))}
					two := train(t, tk, n, 3, append(opts, dp.DeviceIDs(0, 1))...)
					again := train(t, tk, n, 3, append(opts, dp.DeviceIDs(0, 1))...)
					apartFrom(t, "two cards", two, one)
					apartFrom(t, "two cards, in buckets", train(t, tk, n, 3, append(opts, dp.DeviceIDs(0, 1), dp.BucketBytes(64))...), one)
					if !sameBits(two.params, again.params) {
						t.Error("the second time the bits differ")
					}
					var each [2]result
					m := newMeeting(2)
					errs := make([]error, 2)
					var ranks sync.WaitGroup
					for r := range each {
						ranks.Go(func() {
							errs[r] = func() error {
								d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat([]dp.Option{dp.Seed(3)}, tk.opts, opts, []dp.Option{dp.DeviceIDs(r), dp.WithSession(end{m, r})})...)
								if err != nil {
									return err
								}
								each[r], err = stepsAhead(t.Context(), tk, d, 10, n, 3)
								return errors.Join(err, d.Close())
							}()
						})
					}
					ranks.Wait()
					allWell(t, errs)
					for r := range each {
						apartFrom(t, fmt.Sprint("process ", r), each[r], one)
					}
					if said.Len() > 0 {
						t.Errorf("it was said: %s", said)
					}
				})
			}
		}
	}
}

// stepsAhead is steps, of which none is waited for before all are under way.
func stepsAhead(ctx context.Context, tk task, d *dp.DataParallel, count, n int, seed uint64) (r result, err error) {
	rng := rand.New(rand.NewPCG(seed, 7))
	var late []*dp.Loss
	for range count {
		x, y := batchOf(rng, n, tk.in, tk.out)
		l, err := d.StepAsync(ctx, x, y)
		if err != nil {
			return r, err
		}
		late = append(late, l)
	}
	for _, l := range late {
		loss, err := l.Value()
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, loss)
	}
	r.params, err = stateOf(d)
	return r, err
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func apartFrom(t *testing.T, what string, got, want result) {
	t.Helper()
	for i, loss := range got.losses {
		if math.IsNaN(loss) && math.IsNaN(want.losses[i]) {
			continue // of samples that do not count
		}
		if d := math.Abs(loss-want.losses[i]) / math.Max(1, math.Abs(want.losses[i])); !(d < 1e-5) {
			t.Errorf("%s: loss %d is %v, want %v", what, i, loss, want.losses[i])
			return
		}
	}
	if d := apart(got.params, want.params); !(d < 1e-5) {
		t.Errorf("%s: parameters are %.2g apart", what, d)
	}
}

// TestCardsSurviveAFailure: a label out of range, or a batch that one card has no room for, ends the step on both; then they train on.
func TestCardsSurviveAFailure(t *testing.T) {
	needCards(t, 2)
	tk := tasks()[0]
	d, err := dp.New(nn.Sequential(nn.Flatten(), nn.Linear(12, 4096), nn.ReLU(), nn.Linear(4096, 5)), tk.loss(), tk.opt(), dp.DeviceIDs(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	x, y := batches(tk, 1, 2_000)
	step := func() (float64, error) { return d.Step(t.Context(), x[0], y[0]) }
	if _, err := step(); err != nil {
		t.Fatal(err)
	}
	if err := cudaops.SetDeviceMemoryLimit(2<<30, 1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cudaops.SetDeviceMemoryLimit(1<<40, 1); err != nil {
			t.Error(err)
		}
	}()
	before := state(t, d)
	large, labels := batches(tk, 1, 400_000)
	var oom *cudaops.OutOfMemoryError
	if _, err := d.Step(t.Context(), large[0], labels[0]); !errors.As(err, &oom) || oom.Device != 1 {
		t.Fatalf("400,000 samples with a cap of 2 GiB on card 1: %v, want an OutOfMemoryError", err)
	}
	if after := state(t, d); !slices.Equal(before, after) {
		t.Error("the step that failed has changed parameters")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := d.Step(ended, x[0], y[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	start := time.Now()
	if _, err := step(); err != nil {
		t.Error(err)
	}
	t.Logf("the step after it took %v", time.Since(start))
}

// BenchmarkCards times steps of perceptrons on batches that are on the cards: on one, and on two with each strategy.
func BenchmarkCards(b *testing.B) {
	needCards(b, 2)
	small := func() nn.Module {
		return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
	}
	large := func() nn.Module {
		return nn.Sequential(nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 1000))
	}
	for _, c := range []struct {
		name  string
		model func() nn.Module
		in, n int
	}{{"small", small, 784, 64}, {"small", small, 784, 4096}, {"large", large, 8192, 4096}} {
		x, y := batches(task{in: []int{c.in}, out: 10}, 1, c.n)
		run := func(name string, opts ...dp.Option) {
			b.Run(fmt.Sprintf("%s/%d/%s", c.name, c.n, name), func(b *testing.B) {
				d, err := dp.New(c.model(), nn.CrossEntropy(), nn.SGD(0.01, nn.Momentum(0.9)), append(opts, dp.WithPrecision(nn.TF32))...)
				if err != nil {
					b.Fatal(err)
				}
				placed, err := d.Upload(x[0], y[0])
				if err != nil {
					b.Fatal(err)
				}
				var loss *dp.Loss
				step := func() {
					if loss, err = d.StepBatch(b.Context(), placed); err != nil {
						b.Fatal(err)
					}
				}
				wait := func() {
					if _, err := loss.Value(); err != nil {
						b.Fatal(err)
					}
				}
				for range 8 {
					step()
				}
				wait()
				b.ResetTimer()
				for range b.N {
					step()
				}
				wait()
				b.StopTimer()
				if err := errors.Join(placed.Free(), d.Close()); err != nil {
					b.Fatal(err)
				}
			})
		}
		run("one", dp.DeviceIDs(0))
		for _, s := range strategies {
			run(s.String(), dp.DeviceIDs(0, 1), dp.WithStrategy(s))
		}
	}
}

// jobVariable makes TestCardsInAJob a worker, for so many steps.
const jobVariable = "TANDEM_TEST_STEPS"

// TestCardsInAJob is a worker of a job of several processes, such as
//
//	TANDEM_TEST_STEPS=1000 tandem run ./dp.test -test.run TestCardsInAJob
//
// which trains for so many steps with every strategy, on batches that do not divide evenly, twice, and compares with one card. With very many
// steps it is something to kill.
func TestCardsInAJob(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv(jobVariable))
	if err != nil {
		t.Skip("this is for workers of tandem run")
	}
	tk := tasks()[0]
	first := false
	train := func(s dp.Strategy, n int) result {
		d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(3), dp.WithStrategy(s))
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, d)
		start := time.Now()
		r, err := stepsAhead(t.Context(), tk, d, count, n, 3)
		if err != nil {
			t.Fatal(err)
		}
		first = d.Rank() == 0
		t.Logf("rank %d: %d steps by %v on batches of %d in %v", d.Rank(), count, s, n, time.Since(start))
		return r
	}
	for _, n := range []int{33, 1} {
		for _, s := range strategies {
			job, again := train(s, n), train(s, n)
			if !sameBits(job.params, again.params) {
				t.Errorf("%v on batches of %d: the second time the bits differ", s, n)
			}
			if first {
				apartFrom(t, fmt.Sprintf("%v on batches of %d", s, n), job, trainSteps(t, tk, count, n, 3, dp.Alone(), dp.DeviceIDs(0)))
			}
		}
	}
}
