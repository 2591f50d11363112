package dp_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

var halves = []nn.Precision{nn.BF16, nn.FP16}

// apartInHalves is how far apart parameters may be that other numbers of ranks lead to. What is summed in another order may round to the
// neighbouring 16-bit number; in bf16 one rank rounds the gradients of parameters, two round theirs before they are added up, and more do not.
var apartInHalves = map[nn.Precision]float64{nn.BF16: 4e-3, nn.FP16: 1e-3}

// TestHalvesTrain: in 16 bits training goes as in float32, nearly, on the host and on any number of ranks.
func TestHalvesTrain(t *testing.T) {
	cudaopstest.Setup(t, "3x64MiB", "")
	const seed = 5
	for _, tk := range []task{tasks()[0], tasks()[1], tasks()[4]} {
		exact := trainSteps(t, tk, 30, 40, seed, dp.DeviceIDs(dp.Host))
		for _, p := range halves {
			host := trainSteps(t, tk, 30, 40, seed, dp.DeviceIDs(dp.Host), dp.WithPrecision(p))
			if slices.Equal(host.losses, exact.losses) {
				t.Errorf("%s, %v: losses are those of float32, so nothing was rounded", tk.name, p)
			}
			for i := range exact.losses {
				if d := math.Abs(host.losses[i]/exact.losses[i] - 1); !(d < 0.02) {
					t.Errorf("%s, %v: loss %d is %v, in float32 %v", tk.name, p, i, host.losses[i], exact.losses[i])
				}
			}
			one := trainSteps(t, tk, 30, 40, seed, dp.DeviceIDs(0), dp.WithPrecision(p))
			if !slices.Equal(one.params, host.params) {
				t.Errorf("%s, %v: a simulated card has other bits than the host", tk.name, p)
			}
			for _, s := range strategies {
				got := trainSteps(t, tk, 30, 40, seed, dp.WithPrecision(p), dp.WithStrategy(s))
				if d := apart(got.params, one.params); !(d < apartInHalves[p]) {
					t.Errorf("%s, %v, %v: parameters are %.3g apart from one card's", tk.name, p, s, d)
				}
			}
		}
	}
}

// TestTwoRanksInHalves: each of two ranks rounds its gradients, however many samples it has.
func TestTwoRanksInHalves(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	twoRanksInHalves(t, tasks(), 21, 3, 1)
	tk := tasks()[0]
	rounded := trainSteps(t, tk, 3, 9, 3, dp.WithPrecision(nn.BF16), dp.WithStrategy(dp.AllReduce), dp.GradientsApart())
	for name, opts := range map[string][]dp.Option{
		"gradients are few": nil, "gradients of micro-batches might have to be added up": {dp.GradientsApart(), dp.AutoMicroBatch()},
	} {
		summed := trainSteps(t, tk, 3, 9, 3, append(opts, dp.WithPrecision(nn.BF16), dp.WithStrategy(dp.AllReduce))...)
		if sameBits(rounded.params, summed.params) {
			t.Errorf("where %s, so that they are float32, parameters are the same", name)
		}
	}
}

// twoRanksInHalves demands that two ranks come near to what one comes to, with shares of one sample and of none too, that they have the same bits as each
// other, and have them again.
func twoRanksInHalves(t *testing.T, list []task, samples ...int) {
	t.Helper()
	for _, tk := range list {
		limit := 1.
		if tk.opt().Name() == "adam" {
			limit = 3 // it divides by the gradients' size, so that what small ones are rounded by counts as much as what large ones are
		}
		for _, n := range samples {
			for _, p := range halves {
				one := trainSteps(t, tk, 12, n, 3, dp.DeviceIDs(0), dp.WithPrecision(p))
				for _, s := range strategies {
					for _, bucket := range []int{0, 64} {
						name := fmt.Sprintf("%s, %d samples, %v, %v, buckets of %d bytes", tk.name, n, p, s, bucket)
						var params [2][2][]float32 // of the first time and the second, by ranks
						for i := range params {
							d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat([]dp.Option{dp.Seed(3), dp.DeviceIDs(0, 1), dp.WithPrecision(p), dp.WithStrategy(s), dp.BucketBytes(bucket), dp.GradientsApart()}, tk.opts)...)
							if err != nil {
								t.Fatal(err)
							}
							two, err := steps(t.Context(), tk, d, 12, n, 3)
							if err != nil {
								t.Fatal(err)
							}
							if far := apart(two.params, one.params); !(far < limit*apartInHalves[p]) {
								t.Errorf("%s: parameters are %.3g apart from one card's", name, far)
							}
							for r := range params[i] {
								if params[i][r], err = dp.ParametersOf(d, r); err != nil {
									t.Fatal(err)
								}
							}
							closed(t, d)
						}
						if !sameBits(params[0][0], params[0][1]) {
							t.Errorf("%s: the ranks' parameters differ", name)
						}
						if !sameBits(params[0][0], params[1][0]) {
							t.Errorf("%s: the second time the bits differ", name)
						}
					}
				}
			}
		}
	}
}

// TestSkippedSteps: a step whose gradients overflow changes nothing but the scale of the loss, on any rank, whichever rank they overflow on.
func TestSkippedSteps(t *testing.T) {
	cudaopstest.Setup(t, "3x64MiB", "")
	tk := tasks()[1] // Adam, which would remember an infinity
	for _, s := range strategies {
		for _, ids := range [][]int{{0}, {0, 1, 2}} {
			t.Run(fmt.Sprintf("%v on %v", s, ids), func(t *testing.T) {
				d, err := dp.New(tk.model(), tk.loss(), tk.opt(), append(tk.opts, dp.Seed(1), dp.DeviceIDs(ids...), dp.WithStrategy(s), dp.WithPrecision(nn.FP16))...)
				if err != nil {
					t.Fatal(err)
				}
				defer closed(t, d)
				step := func(x0 float32) (loss float64, skipped int) {
					t.Helper()
					x, y := batchOf(rand.New(rand.NewPCG(2, 3)), 12, tk.in, tk.out)
					if x0 != 0 {
						x.Data().([]float32)[len(x.Data().([]float32))-1] = x0 // of the last rank's
					}
					loss, err := d.Step(t.Context(), x, y)
					if err != nil {
						t.Fatal(err)
					}
					if skipped, err = d.SkippedSteps(); err != nil {
						t.Fatal(err)
					}
					return loss, skipped
				}
				first, skipped := step(0)
				if skipped != 0 {
					t.Fatalf("%d of one good step are skipped", skipped)
				}
				before := state(t, d)
				for i, x0 := range []float32{1e6, float32(math.NaN())} {
					if _, skipped = step(x0); skipped != i+1 {
						t.Fatalf("%d steps are skipped, want %d", skipped, i+1)
					}
					if !slices.Equal(state(t, d), before) {
						t.Fatalf("a skipped step has changed parameters")
					}
				}
				last := first
				for range 30 {
					last, skipped = step(0)
				}
				if skipped != 2 || !(last < 0.8*first) {
					t.Errorf("after good steps the loss is %v, at first %v, with %d steps skipped", last, first, skipped)
				}
			})
		}
	}
}

// TestScaleSettles: a scale that is too large for the gradients is halved until they fit.
func TestScaleSettles(t *testing.T) {
	d, err := dp.New(mlp(), nn.MSE(), nn.SGD(1e-9), dp.Seed(1), dp.DeviceIDs(dp.Host), dp.WithPrecision(nn.FP16))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	rng := rand.New(rand.NewPCG(4, 5))
	x, _ := batchOf(rng, 8, []int{12}, 5)
	y, _ := batchOf(rng, 8, []int{5}, 5)
	for i := range y.Data().([]float32) {
		y.Data().([]float32)[i] *= 300 // far more than the model gives, so gradients are large
	}
	var skipped []int
	for range 12 {
		if _, err := d.Step(t.Context(), x, y); err != nil {
			t.Fatal(err)
		}
		n, err := d.SkippedSteps()
		if err != nil {
			t.Fatal(err)
		}
		skipped = append(skipped, n)
	}
	n := skipped[len(skipped)-1]
	if n < 3 || n > 10 || skipped[n-1] != n {
		t.Errorf("steps skipped so far: %v; want the first ones to be, and no more", skipped)
	}
}
