//go:build !race

// What runs here is C, which the race detector does not see.

package exec_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// Updates in parts, of which each waits for its own gradients only and which the fake does in any order that the graph allows, come to the bits of
// updates by one loop.
func TestUpdateInParts(t *testing.T) {
	chain := map[string]string{"FAKE_CUDA_MAJOR": "9", exec.BranchesVariable: "off"}
	linked := map[string]string{cudaops.LinkVariable: "auto"}
	for _, c := range []struct {
		name  string
		cards int
		env   map[string]string
		opts  []dp.Option
	}{
		{"halves", 1, nil, []dp.Option{dp.WithPrecision(nn.BF16)}},
		{"in a chain", 1, chain, nil},
		{"two cards", 2, linked, []dp.Option{dp.WithStrategy(dp.AllReduce), dp.BucketBytes(256)}},
		{"shares", 2, linked, []dp.Option{dp.WithStrategy(dp.Sharded), dp.BucketBytes(256)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}[:c.cards], NCCL: c.cards > 1, Kernels: true, Env: c.env}) {
				return
			}
			want := trained(t, c.opts...)
			exec.SetLeastPart(t, 512)
			if got := trained(t, c.opts...); !slices.Equal(got, want) {
				t.Errorf("the parts come to %v, the whole to %v", got, want)
			}
		})
	}
}

// trained gives the bits of a small network's parameters after some steps.
func trained(t *testing.T, opts ...dp.Option) (bits []uint32) {
	t.Helper()
	model := nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
	d, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)), append(opts, dp.Seed(3))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	const n = 4
	for step := range 4 {
		x, y := make([]float32, 5*n), make([]int32, n)
		for i := range x {
			x[i] = float32(math.Sin(float64(1 + i + step)))
		}
		for i := range y {
			y[i] = int32((i + step) % 3)
		}
		if _, err := d.Step(t.Context(), tensor.New(tensor.WithShape(n, 5), tensor.WithBacking(x)), tensor.New(tensor.WithShape(n), tensor.WithBacking(y))); err != nil {
			t.Fatal(err)
		}
	}
	sd, err := d.StateDict()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range sd.All() {
		data, ok := v.Data().([]float32)
		if !ok {
			t.Fatal(fmt.Errorf("%s is of %v", name, v.Dtype()))
		}
		for _, x := range data {
			bits = append(bits, math.Float32bits(x))
		}
	}
	return bits
}
