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
// neighbouring 16-bit number; in bf16 one rank rounds the gradients of parameters, and several, which add them up, do not.
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
