package dp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// memoryVariable says to a process of the tests below which part it has.
const memoryVariable = "TANDEM_TEST_MEMORY"

// again is a command that runs a test of this binary in a process of its own, with a part.
func again(t *testing.T, test, part string, env ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+test+"$", "-test.v")
	c.Env = append(append(os.Environ(), memoryVariable+"="+part), env...)
	return c
}

// usedByProcesses is how many bytes of the card each process has, as nvidia-smi says it, in whole MiB.
func usedByProcesses(t *testing.T) map[int]int64 {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatalf("nvidia-smi: %v", err)
	}
	used := map[int]int64{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		var pid int
		var mib int64
		if _, err := fmt.Sscanf(s.Text(), "%d, %d", &pid, &mib); err != nil {
			t.Fatalf("nvidia-smi says %q: %v", s.Text(), err)
		}
		used[pid] += mib << 20
	}
	return used
}

// cardNets are the networks of the benchmarks.
func cardNets() map[string]task {
	ce := func() nn.Loss { return nn.CrossEntropy() }
	sgd := func() nn.Optimizer { return nn.SGD(0.01, nn.Momentum(0.9)) }
	return map[string]task{
		"mlp": {loss: ce, opt: sgd, in: []int{784}, out: 10, model: func() nn.Module {
			return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
		}},
		"cnn": {loss: ce, opt: sgd, in: []int{1, 28, 28}, out: 10, model: func() nn.Module {
			return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
				nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
		}},
		"big": {loss: ce, opt: sgd, in: []int{8192}, out: 8192, model: func() nn.Module {
			return nn.Sequential(nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192))
		}},
	}
}

// TestCardPlanAgainstNVML: what a plan says that the process will hold of the card, context and libraries included, is what nvidia-smi shows after the
// step, within 1 %. Where the fastest ways have not been measured before, it is a bound.
func TestCardPlanAgainstNVML(t *testing.T) {
	if part := os.Getenv(memoryVariable); part != "" {
		planAndStep(t, part)
		return
	}
	needCard(t)
	for _, part := range []string{"mlp 64", "mlp 4096", "cnn 64", "cnn 4096", "big 4096"} {
		cache := t.TempDir()
		for _, measured := range []bool{false, true} {
			out, err := again(t, t.Name(), part, "TANDEM_CACHE="+cache).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", part, err, out)
			}
			var planned, used int64
			var atMost bool
			_, result, _ := strings.Cut(string(out), "RESULT ")
			if _, err := fmt.Sscan(result, &planned, &used, &atMost); err != nil {
				t.Fatalf("%s: %v in\n%s", part, err, out)
			}
			off := float64(planned)/float64(used) - 1
			t.Logf("%s, measured before %t: planned %s (at most %t), found %s: %+.2f %%", part, measured, cudaops.FormatSize(planned), atMost, cudaops.FormatSize(used), 100*off)
			if measured && (atMost || math.Abs(off) > 0.01) || off < -0.01 {
				t.Errorf("%s, measured before: %t\n%s", part, measured, out)
			}
		}
	}
}

// planAndStep is a process of that test.
func planAndStep(t *testing.T, part string) {
	name, batch, _ := strings.Cut(part, " ")
	n, err := strconv.Atoi(batch)
	if err != nil {
		t.Fatal(err)
	}
	tk := cardNets()[name]
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.DeviceIDs(0), dp.WithPrecision(nn.TF32))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	start := time.Now()
	plan, err := d.Plan(shapeOf(n, tk.in)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("planned in %v:\n%v", time.Since(start), plan)
	x, y := batchOf(rand.New(rand.NewPCG(1, 1)), n, tk.in, tk.out)
	if _, err := d.Step(t.Context(), x, y); err != nil {
		t.Fatal(err)
	}
	c := plan.Cards[0]
	used, ok := usedByProcesses(t)[os.Getpid()]
	if !ok {
		t.Fatal("nvidia-smi does not show this process: does it number processes otherwise?")
	}
	fmt.Println("RESULT", c.Reserved+c.Context, used, c.Unmeasured)
	for range 4 {
		if _, err := d.Step(t.Context(), x, y); err != nil {
			t.Fatal(err)
		}
	}
	allocated, reserved := held(t, 0)
	t.Logf("in use %d, planned %d; reserved %d, planned %d; after more steps nvidia-smi shows %s", allocated, c.Total()+c.Other, reserved, c.Reserved, cudaops.FormatSize(usedByProcesses(t)[os.Getpid()]))
}

// TestCardAutoMicroBatch trains under a cap of a third of what the batch needs beside the context, with the result of training without it.
//
// With ReLU that is as close as float32 comes to the exact result, not closer: a number before ReLU that rounding puts on the other side of 0 turns a
// sample's gradient on or off. After 20 steps the whole batch's parameters were 9.9e-7 from those of float64, PyTorch's 9.6e-7, and those of 3 and 11 parts
// 7.1e-7 and 1.9e-7. With GELU, which has no such jump, sums in another order are all that is left: 7e-9.
func TestCardAutoMicroBatch(t *testing.T) {
	needCard(t)
	for name, c := range map[string]struct {
		activation func() nn.Module
		within     float64
	}{
		"ReLU": {func() nn.Module { return nn.ReLU() }, 3e-6},
		"GELU": {func() nn.Module { return nn.GELU() }, 1e-7},
	} {
		t.Run(name, func(t *testing.T) {
			tk := cardNets()["mlp"]
			tk.model = func() nn.Module {
				return nn.Sequential(nn.Linear(784, 512), c.activation(), nn.Linear(512, 512), c.activation(), nn.Linear(512, 10))
			}
			trainCapped(t, tk, c.within)
		})
	}
}

// trainCapped is that test of one network.
func trainCapped(t *testing.T, tk task, within float64) {
	const n, seed = 4096, 5
	on := []dp.Option{dp.DeviceIDs(0), dp.AutoMicroBatch()}
	whole := trainSteps(t, tk, 20, n, seed, on...)
	planned := func() *dp.Plan {
		d, err := dp.New(tk.model(), tk.loss(), tk.opt(), on...)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, d)
		plan, err := d.Plan(shapeOf(n, tk.in)...)
		if err != nil || !plan.Fits() {
			t.Fatalf("%v\n%v", err, plan)
		}
		t.Logf("%v", plan)
		return plan
	}
	need := planned().Cards[0]
	const kept = 32 << 20 // of a cap, for what the driver takes
	if err := cudaops.SetDeviceMemoryLimit(need.Context+need.Total()/3+kept, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cudaops.SetDeviceMemoryLimit(1<<40, 0); err != nil {
			t.Error(err)
		}
	}()
	if p := planned(); p.Parts < 2 || p.Cards[0].Total() > need.Total()/3 {
		t.Errorf("under the cap a step takes %d bytes in %d parts, without it %d", p.Cards[0].Total(), p.Parts, need.Total())
	}
	got := trainSteps(t, tk, 20, n, seed, on...)
	d := apart(got.params, whole.params)
	t.Logf("parameters are %.3g apart from the whole batch's", d)
	if !(d < within) {
		t.Errorf("more than %g", within)
	}
}

// TestCardRecompute: on a card, too, the bits are the same with half of the activations.
func TestCardRecompute(t *testing.T) {
	needCard(t)
	const n = 4096
	tk := deep(1024)
	for _, p := range []nn.Precision{nn.FP32, nn.TF32} {
		on := []dp.Option{dp.DeviceIDs(0), dp.WithPrecision(p)}
		whole := activations(t, tk, n, on...)
		half := append(on, dp.Recompute(whole/2))
		if took := activations(t, tk, n, half...); took > whole/2 {
			t.Errorf("%v: %d bytes of activations, %d without recomputing", p, took, whole)
		}
		want, got := trainSteps(t, tk, 3, n, 7, on...), trainSteps(t, tk, 3, n, 7, half...)
		if !slices.Equal(got.params, want.params) || !slices.Equal(got.losses, want.losses) {
			t.Errorf("%v: other bits: losses %v, want %v", p, got.losses, want.losses)
		}
	}
}
