package dp_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// deep is an MLP of 24 layers and a last one.
func deep(width int) task {
	return task{name: "24 layers", loss: func() nn.Loss { return nn.CrossEntropy() }, in: []int{width}, out: 10,
		opt: func() nn.Optimizer { return nn.SGD(0.01, nn.Momentum(0.9)) },
		model: func() nn.Module {
			var layers []nn.Module
			for range 24 {
				layers = append(layers, nn.Linear(width, width), nn.ReLU())
			}
			return nn.Sequential(append(layers, nn.Linear(width, 10))...)
		}}
}

// activations are what a step on n samples takes for them, on the first rank.
func activations(t testing.TB, tk task, n int, opts ...dp.Option) int64 {
	t.Helper()
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat(tk.opts, opts)...)
	if err != nil {
		t.Fatal(err)
	}
	x, y := batchOf(rand.New(rand.NewPCG(1, 1)), n, tk.in, tk.out)
	if _, err := d.Step(t.Context(), x, y); err != nil {
		t.Fatal(err)
	}
	took := d.Memory()[0].Activations
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return took
}

// TestRecomputeGivesTheSameBits: with half of the activations, and with as few as possible, losses and parameters are the same to the bit.
func TestRecomputeGivesTheSameBits(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	transformed := task{name: "normalisation and dropout", loss: func() nn.Loss { return nn.CrossEntropy() }, in: []int{24}, out: 5,
		opt: func() nn.Optimizer { return nn.Adam(0.01) },
		model: func() nn.Module {
			var layers []nn.Module
			for range 4 {
				layers = append(layers, nn.Linear(24, 24), nn.LayerNorm(24), nn.GELU(), nn.Dropout(0.2), nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Tanh())
			}
			return nn.Sequential(append(layers, nn.Linear(24, 5))...)
		}}
	const n = 200
	for _, tk := range append(tasks(), deep(16), transformed) {
		whole := activations(t, tk, n)
		want := trainSteps(t, tk, 3, n, 7)
		for _, budget := range []int64{whole / 2, 0} {
			took := activations(t, tk, n, dp.Recompute(budget))
			if layers := tk.name == "24 layers" || tk.name == transformed.name; took > whole || layers && took > max(budget, whole/2) {
				t.Errorf("%s: %d bytes of activations, %d without recomputing, %d wanted", tk.name, took, whole, budget)
			}
			got := trainSteps(t, tk, 3, n, 7, dp.Recompute(budget))
			if !slices.Equal(got.params, want.params) || !slices.Equal(got.losses, want.losses) {
				t.Errorf("%s, %d bytes: other bits: losses %v, want %v", tk.name, budget, got.losses, want.losses)
			}
		}
	}
}

func TestRecomputeRefuses(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	if d, err := dp.New(mlp(), nn.CrossEntropy(), nn.SGD(0.1), dp.Recompute(-1)); err == nil {
		closed(t, d)
		t.Error("a budget of -1 bytes is taken")
	}
}

// BenchmarkRecompute is a step of an MLP of 24 layers with all, a half and the least of its activations, on the card where there is one.
func BenchmarkRecompute(b *testing.B) {
	tk, n, device := deep(256), 512, dp.Host
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		b.Fatal(err)
	}
	if len(cards) > 0 && !cards[0].Simulated {
		tk, n, device = deep(2048), 4096, 0
	}
	whole := activations(b, tk, n, dp.DeviceIDs(device))
	for _, percent := range []int64{100, 50, 0} {
		b.Run(fmt.Sprintf("%d%%", percent), func(b *testing.B) {
			d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.DeviceIDs(device), dp.Recompute(whole*percent/100))
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := d.Close(); err != nil {
					b.Error(err)
				}
			}()
			x, y := batchOf(rand.New(rand.NewPCG(1, 1)), n, tk.in, tk.out)
			if _, err := d.Step(b.Context(), x, y); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := d.Step(b.Context(), x, y); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(d.Memory()[0].Activations)/float64(whole), "activations/whole")
		})
	}
}
