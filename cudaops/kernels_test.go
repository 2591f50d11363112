//go:build !race

// What runs here is C, which the race detector does not see.

package cudaops_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/backendtest"
)

// TestKernels runs programs on a card whose driver and compiler are fakes: slow, but on machines without a card it is what sees that kernels,
// their arguments and the order of tasks in graphs are right. TANDEM_TEST_LONG=1 runs the whole suite.
func TestKernels(t *testing.T) { conforms(t, nil, "^(program|ranks|fault|memory)$") }

// TestKernelsInChains runs some programs as on cards that launch kernels early, in the order in which those come then.
func TestKernelsInChains(t *testing.T) {
	conforms(t, map[string]string{"FAKE_CUDA_MAJOR": "9", exec.BranchesVariable: "off"}, "^program$/^(mlp_step|cnn_step|attention|flat_update|adam)$")
}

// TestHalfKernels does the same for some programs whose numbers lie in 16 bits.
func TestHalfKernels(t *testing.T) {
	conforms(t, nil, "^half$/^(bf16|f16)_(matmul_with_epilogue|softmax|concat|gather|mlp_step|cnn_step|flat_update)$", backendtest.Only("half"))
}

// conforms runs the suite of backends on such a card, with more variables; of its cases, those of a pattern, unless all are asked for.
func conforms(t *testing.T, env map[string]string, short string, opts ...backendtest.Option) {
	config := fakecuda.Config{Cards: []int64{4096}, Kernels: true, Env: env}
	if os.Getenv("TANDEM_TEST_LONG") == "" {
		config.Subtests = short
	}
	if !fakecuda.In(t, config) {
		return
	}
	backendtest.Run(t, func(t *testing.T) ir.Device {
		dev, err := cudaops.Open(0, 1)
		if err != nil {
			t.Fatal(err)
		}
		return dev
	}, opts...)
}

// TestFakeHearsWhatTestsAreAsked: a seed, and the wish for more, come to the process that has the fake driver.
func TestFakeHearsWhatTestsAreAsked(t *testing.T) {
	seed, long := os.Getenv("TANDEM_SEED"), os.Getenv("TANDEM_TEST_LONG")
	t.Setenv("TANDEM_SEED", "5")
	t.Setenv("TANDEM_TEST_LONG", "1")
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{64}}) && (seed != "5" || long != "1") {
		t.Errorf("it hears of seed %q and long %q", seed, long)
	}
}

// TestWaitGivesOutput: what runs that are under way put out is kept apart, and is gone when as many others have begun as a card keeps.
func TestWaitGivesOutput(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Kernels: true}) {
		return
	}
	dev, err := cudaops.Open(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	var g ir.Graph
	x := &ir.Slot{Region: ir.Input, Name: "x", Shape: ir.Of(3)}
	g.Store(&ir.Slot{Region: ir.Output, Name: "sum"}, g.Sum(g.Read(x)))
	p, err := ir.Compile("sum", [ir.NumRegions]int{}, ir.Target{}, ir.Part{Graph: &g})
	if err != nil {
		t.Fatal(err)
	}
	var mem [ir.NumRegions]ir.DeviceMemory
	for r := range ir.NumRegions {
		if n := p.Bytes(r); n > 0 {
			if mem[r], err = dev.Alloc(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	loaded, err := dev.Load(p, mem)
	if err != nil {
		t.Fatal(err)
	}
	exe := loaded.(ir.Starter)
	var runs []uint64
	start := func() {
		n := float32(len(runs))
		if err := mem[ir.Input].Write(0, ir.Bytes([]float32{n, 10 * n, 100 * n})); err != nil {
			t.Fatal(err)
		}
		run, err := exe.Start(t.Context(), &ir.Runtime{})
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	wait := func(i int) (float32, error) {
		var out [1]float32
		err := exe.Wait(runs[i], ir.Bytes(out[:]))
		return out[0], err
	}
	for range 3 {
		start()
	}
	for i := range 9 {
		if sum, err := wait(i); sum != 111*float32(i) || err != nil {
			t.Errorf("run %d put out %v, %v", i, sum, err)
		}
		start()
	}
	for range 4 {
		start()
	}
	if _, err := wait(9); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("of a run that is long past: %v", err)
	}
	if err := exe.Wait(runs[9], nil); err != nil {
		t.Errorf("without asking what it put out: %v", err)
	}
	if err := exe.Wait(runs[len(runs)-1], make([]byte, 8)); err == nil || !strings.Contains(err.Error(), "8 bytes asked for") {
		t.Errorf("asking for more than there is: %v", err)
	}
	errs := []error{exe.Close()}
	for _, m := range mem {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	if err := errors.Join(append(errs, dev.Close())...); err != nil {
		t.Error(err)
	}
}
