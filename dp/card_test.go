package dp_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// needCard skips a test where there is no CUDA card.
func needCard(t *testing.T) {
	t.Helper()
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	if len(cards) == 0 || cards[0].Simulated {
		t.Skip("this machine has no CUDA card")
	}
}

// TestCardEqualsHost trains each task on a card and on the host: steps that are waited for, steps that are not, and batches on the card.
// Dropout has the same bits on both.
func TestCardEqualsHost(t *testing.T) {
	needCard(t)
	cnn := tasks()[0]
	cnn.name, cnn.in = "cnn", []int{1, 28, 28}
	cnn.opt = func() nn.Optimizer { return nn.SGD(0.02, nn.Momentum(0.9)) } // a larger rate makes roundings grow
	cnn.model = func() nn.Module {
		return nn.Sequential(
			nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
			nn.Flatten(), nn.Linear(16*12*12, 32), nn.ReLU(), nn.Linear(32, 5),
		)
	}
	for _, tk := range append(tasks(), cnn) {
		x, y := batches(tk, 50, 32)
		train := func(device int, step func(d *dp.DataParallel, x, y *tensor.Dense) (float64, error)) (r result) {
			d, err := dp.New(tk.model(), tk.loss(), tk.opt(), append([]dp.Option{dp.Seed(3), dp.DeviceIDs(device)}, tk.opts...)...)
			if err != nil {
				t.Fatal(err)
			}
			defer closed(t, d)
			for i := range x {
				loss, err := step(d, x[i], y[i])
				if err != nil {
					t.Fatal(err)
				}
				r.losses = append(r.losses, loss)
			}
			r.params = state(t, d)
			return r
		}
		waited := func(d *dp.DataParallel, x, y *tensor.Dense) (float64, error) { return d.Step(t.Context(), x, y) }
		host := train(dp.Host, waited)
		for name, step := range map[string]func(d *dp.DataParallel, x, y *tensor.Dense) (float64, error){
			"waited for": waited,
			"ahead": func(d *dp.DataParallel, x, y *tensor.Dense) (float64, error) {
				l, err := d.StepAsync(t.Context(), x, y)
				if err != nil {
					return 0, err
				}
				return l.Value()
			},
			"uploaded": func(d *dp.DataParallel, x, y *tensor.Dense) (float64, error) {
				b, err := d.Upload(x, y)
				if err != nil {
					return 0, err
				}
				l, err := d.StepBatch(t.Context(), b)
				if err != nil {
					return 0, errors.Join(err, b.Free())
				}
				loss, err := l.Value()
				return loss, errors.Join(err, b.Free())
			},
		} {
			t.Run(tk.name+"/"+name, func(t *testing.T) {
				card := train(0, step)
				for i, loss := range card.losses {
					if d := math.Abs(loss-host.losses[i]) / math.Max(1, math.Abs(host.losses[i])); !(d < 1e-4) {
						t.Fatalf("loss %d is %v, on the host %v", i, loss, host.losses[i])
					}
				}
				if d := apart(card.params, host.params); !(d < 1e-4) {
					t.Errorf("parameters are %.2g apart after 50 steps", d)
				}
			})
		}
	}
}

// TestCardHalvesEqualHost: in 16 bits a card stores and multiplies what the host rounds to. The two sum in other orders, so some results
// round to the neighbouring number.
func TestCardHalvesEqualHost(t *testing.T) {
	needCard(t)
	cnn := tasks()[0]
	cnn.name, cnn.in = "cnn", []int{1, 16, 16}
	cnn.opt = func() nn.Optimizer { return nn.SGD(0.02, nn.Momentum(0.9)) }
	cnn.model = func() nn.Module {
		return nn.Sequential(
			nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
			nn.Flatten(), nn.Linear(16*6*6, 32), nn.ReLU(), nn.Linear(32, 5),
		)
	}
	for _, tk := range append(tasks(), cnn) {
		for _, p := range halves {
			host := trainSteps(t, tk, 50, 32, 3, dp.DeviceIDs(dp.Host), dp.WithPrecision(p))
			card := trainSteps(t, tk, 50, 32, 3, dp.DeviceIDs(0), dp.WithPrecision(p))
			for i, loss := range card.losses {
				if d := math.Abs(loss-host.losses[i]) / math.Max(1, math.Abs(host.losses[i])); !(d < 0.01) {
					t.Errorf("%s, %v: loss %d is %v, on the host %v", tk.name, p, i, loss, host.losses[i])
					break
				}
			}
			d := apart(card.params, host.params)
			t.Logf("%s, %v: parameters are %.2g apart after 50 steps", tk.name, p, d)
			if !(d < 0.01) {
				t.Errorf("%s, %v: parameters are %.2g apart after 50 steps", tk.name, p, d)
			}
			if again := trainSteps(t, tk, 50, 32, 3, dp.DeviceIDs(0), dp.WithPrecision(p)); !slices.Equal(again.params, card.params) {
				t.Errorf("%s, %v: a second run gives other bits", tk.name, p)
			}
		}
	}
}

// TestCardHalvesFollowLoadedValues: products read a copy of the parameters in halves, which has to change with them.
func TestCardHalvesFollowLoadedValues(t *testing.T) {
	needCard(t)
	tk := tasks()[0]
	other, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(4), dp.DeviceIDs(dp.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, other)
	values, err := other.StateDict()
	if err != nil {
		t.Fatal(err)
	}
	losses := func(device int) (out []float64) {
		d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(3), dp.DeviceIDs(device), dp.WithPrecision(nn.BF16))
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, d)
		x, y := batchOf(rand.New(rand.NewPCG(8, 9)), 32, tk.in, tk.out)
		for i := range 9 {
			if i%3 == 2 {
				if err := d.LoadStateDict(values, true); err != nil {
					t.Fatal(err)
				}
			}
			loss, err := d.Step(t.Context(), x, y)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, loss)
		}
		return out
	}
	host, card := losses(dp.Host), losses(0)
	for i := range host {
		if d := math.Abs(card[i]/host[i] - 1); !(d < 1e-3) {
			t.Errorf("losses are %v, on the host %v", card, host)
			break
		}
	}
}

// TestCardCheckpointGoesOn: what was saved on cards goes on there to the same bits.
func TestCardCheckpointGoesOn(t *testing.T) {
	needCards(t, 1)
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	tk := tasks()[1]
	x, y := batches(tk, 8, 9)
	for n := 1; n <= min(2, len(cards)); n++ {
		for _, p := range []nn.Precision{nn.FP32, nn.TF32, nn.BF16, nn.FP16} {
			for _, s := range strategies {
				var both [2]*dp.DataParallel
				for i := range both {
					d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat(tk.opts, []dp.Option{dp.Seed(3), dp.WithPrecision(p), dp.WithStrategy(s), dp.DeviceIDs([]int{1, 0}[2-n:]...)})...)
					if err != nil {
						t.Fatal(err)
					}
					defer closed(t, d)
					both[i] = d
				}
				if err := goesOn(t, filepath.Join(t.TempDir(), "checkpoint"), x, y, both[0], both[1]); err != nil {
					t.Errorf("%d cards, %v, %v: %v", n, p, s, err)
				}
			}
		}
	}
}

// TestCardRepeatsBits: the same training twice gives the same bits.
func TestCardRepeatsBits(t *testing.T) {
	needCard(t)
	tk := tasks()[3]
	x, y := batches(tk, 20, 32)
	var params [2][]float32
	for i := range params {
		d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(3), dp.DeviceIDs(0))
		if err != nil {
			t.Fatal(err)
		}
		for k := range x {
			if _, err := d.StepAsync(t.Context(), x[k], y[k]); err != nil {
				t.Fatal(err)
			}
		}
		params[i] = state(t, d)
		closed(t, d)
	}
	for i := range params[0] {
		if math.Float32bits(params[0][i]) != math.Float32bits(params[1][i]) {
			t.Fatalf("parameter %d is %v, then %v", i, params[0][i], params[1][i])
		}
	}
}

// TestCardOutOfMemoryIsSurvived: a batch that does not fit gives the typed error, and a smaller one is trained on.
func TestCardOutOfMemoryIsSurvived(t *testing.T) {
	needCard(t)
	if err := cudaops.SetDeviceMemoryLimit(2<<30, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cudaops.SetDeviceMemoryLimit(1<<40, 0); err != nil {
			t.Error(err)
		}
	}()
	tk := tasks()[0]
	d, err := dp.New(nn.Sequential(nn.Flatten(), nn.Linear(12, 4096), nn.ReLU(), nn.Linear(4096, 5)), tk.loss(), tk.opt(), dp.DeviceIDs(0))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	x, y := batches(tk, 1, 200_000)
	var oom *cudaops.OutOfMemoryError
	if _, err := d.Step(t.Context(), x[0], y[0]); !errors.As(err, &oom) {
		t.Fatalf("200,000 samples under a cap of 2 GiB: %v, want an OutOfMemoryError", err)
	}
	x, y = batches(tk, 1, 2_000)
	if _, err := d.Step(t.Context(), x[0], y[0]); err != nil {
		t.Error(err)
	}
}
