package dp_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// randomTask draws a model, its input, loss, optimizer and strategy.
func randomTask(rng *rand.Rand) task {
	tk := task{loss: func() nn.Loss { return nn.CrossEntropy() }, out: 2 + rng.IntN(9)}
	var build []func() nn.Module
	add := func(f func() nn.Module) { build = append(build, f) }
	width := 0
	if rng.IntN(2) == 0 {
		c, side := 1+rng.IntN(3), 8+rng.IntN(5)
		tk.in = []int{c, side, side}
		for range 1 + rng.IntN(2) {
			in, out := c, 2+rng.IntN(6)
			add(func() nn.Module { return nn.Conv2d(in, out, 3) })
			if rng.IntN(2) == 0 {
				add(func() nn.Module { return nn.BatchNorm2d(out) })
			}
			add(func() nn.Module { return nn.ReLU() })
			c, side = out, side-2
		}
		if rng.IntN(2) == 0 {
			add(func() nn.Module { return nn.MaxPool2d(2) })
			side /= 2
		}
		add(func() nn.Module { return nn.Flatten() })
		width = c * side * side
	} else {
		width = 5 + rng.IntN(60)
		tk.in = []int{width}
	}
	for range rng.IntN(4) {
		in, out := width, 5+rng.IntN(60)
		add(func() nn.Module { return nn.Linear(in, out) })
		switch rng.IntN(4) {
		case 0:
			add(func() nn.Module { return nn.Tanh() })
		case 1:
			add(func() nn.Module { return nn.Sequential(nn.LayerNorm(out), nn.GELU()) })
		case 2:
			add(func() nn.Module { return nn.Sequential(nn.ReLU(), nn.Dropout(0.3)) })
		}
		width = out
	}
	add(func() nn.Module { return nn.Linear(width, tk.out) })
	tk.model = func() nn.Module {
		var layers []nn.Module
		for _, f := range build {
			layers = append(layers, f())
		}
		return nn.Sequential(layers...)
	}
	tk.opt = []func() nn.Optimizer{
		func() nn.Optimizer { return nn.SGD(0.01) },
		func() nn.Optimizer { return nn.SGD(0.01, nn.Momentum(0.9)) },
		func() nn.Optimizer { return nn.Adam(0.001) },
	}[rng.IntN(3)]
	tk.opts = []dp.Option{dp.WithStrategy(strategies[rng.IntN(3)]), dp.MicroBatches(1 + rng.IntN(4))}
	return tk
}

func shapeOf(n int, in []int) []int { return append([]int{n}, in...) }

// held is what a process holds on a card: in use, and with what is cached.
func held(t *testing.T, id int) (allocated, reserved int64) {
	t.Helper()
	allocated, err := cudaops.MemoryAllocated(id)
	if err != nil {
		t.Fatal(err)
	}
	if reserved, err = cudaops.MemoryReserved(id); err != nil {
		t.Fatal(err)
	}
	return allocated, reserved
}

// TestPlanIsExact draws models and compares what a plan says with what is taken, to the byte; and the largest batch that it names fits under
// a cap, while one of a sample more does not, and leaves nothing behind.
func TestPlanIsExact(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	models := 20
	if testing.Short() {
		models = 5
	}
	for model := range models {
		tk := randomTask(rng)
		cards := 1 + rng.IntN(3)
		n := 1 + rng.IntN(120)
		t.Run(fmt.Sprint(model), func(t *testing.T) {
			cudaopstest.Setup(t, fmt.Sprintf("%dx32MiB", cards), "")
			open := func() *dp.DataParallel {
				d, err := dp.New(tk.model(), tk.loss(), tk.opt(), tk.opts...)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { closed(t, d) })
				return d
			}
			step := func(d *dp.DataParallel, n int) error {
				x, y := batchOf(rng, n, tk.in, tk.out)
				_, err := d.Step(t.Context(), x, y)
				return err
			}
			d := open()
			before, _ := held(t, 0)
			plan, err := d.Plan(shapeOf(n, tk.in)...)
			if err != nil {
				t.Fatal(err)
			}
			if after, _ := held(t, 0); after != before {
				t.Fatalf("planning took %d bytes", after-before)
			}
			if err := step(d, n); err != nil {
				t.Fatal(err)
			}
			for id, m := range d.Memory() {
				c := plan.Cards[id]
				if allocated, reserved := held(t, id); c.Total() != allocated || c.Total() != m.Total() || c.Reserved != reserved {
					t.Errorf("card %d: planned %d bytes in use and %d reserved, found %d and %d; Memory says %d", id, c.Total(), c.Reserved, allocated, reserved, m.Total())
				}
			}
			closed(t, d)

			limit := plan.Cards[0].Total() + int64(rng.IntN(1<<18))
			if err := cudaops.SetDeviceMemoryLimit(limit); err != nil {
				t.Fatal(err)
			}
			d = open()
			if plan, err = d.Plan(shapeOf(n, tk.in)...); err != nil {
				t.Fatal(err)
			}
			if plan.Largest < 1 {
				t.Fatalf("no batch fits %d bytes:\n%v", limit, plan)
			}
			before, _ = held(t, 0)
			// Memory does not always grow from sample to sample, so that the search may end at another one from where it began.
			far := func(samples int) bool { return samples < plan.Largest*9/10 || samples > plan.Largest*11/10+1 }
			var none *dp.FitError
			if err := step(d, plan.Largest+1); !errors.As(err, &none) || none.Plan.Fits() || far(none.Plan.Largest) {
				t.Errorf("a batch of %d: %v, want a FitError that names about %d\n%v", plan.Largest+1, err, plan.Largest, plan)
			}
			if after, _ := held(t, 0); after != before {
				t.Errorf("a batch that does not fit leaves %d bytes", after-before)
			}
			if err := step(d, plan.Largest); err != nil {
				t.Errorf("the largest batch that fits: %v", err)
			}
		})
	}
}

// TestPlanCountsWhatCanBeUnloaded: programs of other batches make way for one that would not fit beside them.
func TestPlanCountsWhatCanBeUnloaded(t *testing.T) {
	cudaopstest.Setup(t, "1x1GiB", "")
	tk := tasks()[0]
	d, err := dp.New(tk.model(), tk.loss(), tk.opt())
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 3))
	plan, err := d.Plan(shapeOf(4000, tk.in)...)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, d)
	if err := cudaops.SetDeviceMemoryLimit(plan.Cards[0].Total() * 5 / 4); err != nil { // for segments that can't be filled up
		t.Fatal(err)
	}
	if d, err = dp.New(tk.model(), tk.loss(), tk.opt()); err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	for _, n := range []int{3000, 4000, 3000} {
		if plan, err = d.Plan(shapeOf(n, tk.in)...); err != nil || !plan.Fits() || plan.Largest < 4000 || plan.Largest > 5100 {
			t.Fatalf("a batch of %d: %v\n%v", n, err, plan)
		}
		x, y := batchOf(rng, n, tk.in, tk.out)
		if _, err := d.Step(t.Context(), x, y); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Forward(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	x, _ := batchOf(rng, 100000, tk.in, tk.out)
	var none *dp.FitError
	if _, err := d.Forward(t.Context(), x); !errors.As(err, &none) || none.Plan.Call != "Forward" || none.Plan.Largest < 4000 || none.Plan.Largest > 99999 {
		t.Errorf("an evaluation that does not fit: %v", err)
	}
}

func TestPlanAsATable(t *testing.T) {
	cudaopstest.SetupEnv(t, map[string]string{"TANDEM_SIM_CARDS": "2x64MiB", "CUDA_DEVICE_LIMIT": "1:4MiB"})
	tk := tasks()[0]
	d, err := dp.New(tk.model(), tk.loss(), tk.opt())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	plan, err := d.Plan(60000, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	const want = `Step with a batch of [60000 3 4]
                       cuda:0     cuda:1
        parameters   2.00 KiB   2.00 KiB
         gradients   2.00 KiB   2.00 KiB
   optimizer state   2.00 KiB        0 B
       activations   5.15 MiB   5.15 MiB
            inputs   1.49 MiB   1.49 MiB
           outputs      512 B        0 B
         constants      512 B      512 B
          together   6.65 MiB   6.64 MiB
`
	if got := plan.String(); !strings.HasPrefix(got, want) || !strings.Contains(got, "cuda:1: allowed are 4.00 MiB by CUDA_DEVICE_LIMIT (4MiB)") || !strings.Contains(got, "the largest batch that fits has ") {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for _, shape := range [][]int{nil, {0, 3, 4}, {4, -3}, {8, 3, 5}} {
		if p, err := d.Plan(shape...); err == nil {
			t.Errorf("plan for %v: %v, want an error", shape, p)
		}
	}
}

// TestAutoMicroBatch trains under a cap of a third of what the batch needs, with the result of training without it.
func TestAutoMicroBatch(t *testing.T) {
	tk := task{name: "mlp", loss: func() nn.Loss { return nn.CrossEntropy() }, in: []int{64}, out: 10,
		model: func() nn.Module {
			return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
		},
		opt: func() nn.Optimizer { return nn.SGD(0.05, nn.Momentum(0.9)) }}
	const seed = 5
	for _, cards := range []int{1, 2} {
		tk, n := tk, 1024
		if cards == 1 && !testing.Short() {
			tk, n = cardNets()["mlp"], 4096
		}
		cudaopstest.Setup(t, fmt.Sprintf("%dx1GiB", cards), "")
		whole := trainSteps(t, tk, 20, n, seed)
		d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.AutoMicroBatch())
		if err != nil {
			t.Fatal(err)
		}
		plan, err := d.Plan(shapeOf(n, tk.in)...)
		if err != nil || plan.Parts != 1 {
			t.Fatalf("without a cap: %v\n%v", err, plan)
		}
		closed(t, d)
		if err := cudaops.SetDeviceMemoryLimit(plan.Cards[0].Total() / 3); err != nil {
			t.Fatal(err)
		}
		if d, err = dp.New(tk.model(), tk.loss(), tk.opt(), dp.AutoMicroBatch()); err != nil {
			t.Fatal(err)
		}
		plan, err = d.Plan(shapeOf(n, tk.in)...)
		closed(t, d)
		if err != nil || plan.Parts < 3 || !plan.Fits() {
			t.Fatalf("under the cap: %v\n%v", err, plan)
		}
		var log strings.Builder
		got := trainSteps(t, tk, 20, n, seed, dp.AutoMicroBatch(), dp.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if d := apart(got.params, whole.params); !(d < 1e-6) {
			t.Errorf("%d cards, %d parts: parameters are %.3g apart from the whole batch's", cards, plan.Parts, d)
		}
		if said := fmt.Sprintf("computed in %d parts", plan.Parts); strings.Count(log.String(), said) != 1 {
			t.Errorf("said %q, want %q once", log.String(), said)
		}
		// No fewer parts do.
		d, err = dp.New(tk.model(), tk.loss(), tk.opt(), dp.MicroBatches(plan.Parts-1))
		if err != nil {
			t.Fatal(err)
		}
		x, y := batchOf(rand.New(rand.NewPCG(1, 1)), n, tk.in, tk.out)
		var none *dp.FitError
		if _, err := d.Step(t.Context(), x, y); !errors.As(err, &none) {
			t.Errorf("%d parts: %v, want a FitError", plan.Parts-1, err)
		}
		closed(t, d)
	}
}

func TestAutoMicroBatchSaysWhatBatchNormDoes(t *testing.T) {
	cudaopstest.Setup(t, "1x3MiB", "")
	var log strings.Builder
	d, err := dp.New(nn.Sequential(nn.Linear(40, 40), nn.BatchNorm1d(40), nn.Linear(40, 5)), nn.CrossEntropy(), nn.SGD(0.1),
		dp.AutoMicroBatch(), dp.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{10, 10000, 12000} {
		x, y := batchOf(rng, n, []int{40}, 5)
		if _, err := d.Step(t.Context(), x, y); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(log.String(), "does not fit at once") != 2 || strings.Count(log.String(), "batch normalisation takes") != 1 {
		t.Errorf("said\n%s", log.String())
	}
}

func TestFullCard(t *testing.T) {
	cudaopstest.Setup(t, "1x8MiB", "")
	tk := tasks()[0]
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.AutoMicroBatch())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	for bytes := int64(4 << 20); bytes > 0; {
		if _, err := cudaops.Alloc(0, bytes); err != nil {
			bytes /= 2
		}
	}
	x, y := batchOf(rand.New(rand.NewPCG(1, 1)), 20, tk.in, tk.out)
	var none *dp.FitError
	if _, err := d.Step(t.Context(), x, y); !errors.As(err, &none) || none.Plan.Parts != 20 || none.Plan.Largest != 0 || !strings.Contains(err.Error(), "no batch fits") {
		t.Errorf("error is %v, want a FitError", err)
	}
}

// thief takes a card's memory as another process would: just before a program's memory is allocated.
type thief struct {
	ir.Device
	bytes int64
	taken *cudaops.Memory
	after int // allocations
}

func (d *thief) Alloc(n int64) (ir.DeviceMemory, error) {
	if d.after--; d.after == 0 {
		var err error
		if d.taken, err = cudaops.Alloc(0, d.bytes); err != nil {
			return nil, err
		}
	}
	return d.Device.Alloc(n)
}

// TestMemoryGoneMeanwhile: between planning and loading another process takes what was free. The step is planned again.
func TestMemoryGoneMeanwhile(t *testing.T) {
	cudaopstest.Setup(t, "1x8MiB", "")
	tk := tasks()[0]
	const n = 30000
	whole := trainSteps(t, tk, 5, n, 9)
	d, err := dp.New(tk.model(), tk.loss(), tk.opt())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := d.Plan(shapeOf(n, tk.in)...)
	closed(t, d)
	if err != nil || !plan.Fits() {
		t.Fatalf("%v\n%v", err, plan)
	}
	var log strings.Builder
	var th *thief
	got := trainSteps(t, tk, 5, n, 9, dp.AutoMicroBatch(), dp.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		dp.WrapDevices(func(d ir.Device) ir.Device {
			th = &thief{Device: d, bytes: 5 << 20, after: 4} // three arenas of the model come first
			return th
		}))
	if th.taken == nil {
		t.Fatal("nothing was taken")
	}
	if !strings.Contains(log.String(), "computed in ") {
		t.Errorf("the step was not planned again: %q", log.String())
	}
	if d := apart(got.params, whole.params); !(d < 1e-6) {
		t.Errorf("parameters are %.3g apart from the whole batch's", d)
	}
}

// TestAutoMicroBatchTogether: the processes of a job take as many parts as the one with the smallest cap needs.
func TestAutoMicroBatchTogether(t *testing.T) {
	cudaopstest.SetupEnv(t, map[string]string{"TANDEM_SIM_CARDS": "2x64MiB", "CUDA_DEVICE_LIMIT": "1:1MiB"})
	tk := tasks()[3]
	x, y := batches(tk, 3, 9000)
	m := newMeeting(2)
	var log [2]strings.Builder
	var params [2][]float32
	errs := make([]error, 2)
	done := make(chan int)
	for r := range 2 {
		go func() {
			defer func() { done <- r }()
			d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(3), dp.WithSession(end{m, r}), dp.DeviceIDs(r), dp.AutoMicroBatch(),
				dp.WithLogger(slog.New(slog.NewTextHandler(&log[r], nil))))
			if err != nil {
				errs[r] = err
				return
			}
			for i := range x {
				if _, err := d.Step(t.Context(), x[i], y[i]); err != nil {
					errs[r] = errors.Join(errs[r], err)
				}
			}
			params[r] = state(t, d)
			errs[r] = errors.Join(errs[r], d.Close())
		}()
	}
	for range 2 {
		<-done
	}
	allWell(t, errs)
	if !strings.Contains(log[0].String(), "computed in ") || log[1].Len() > 0 {
		t.Errorf("rank 0 said %q, rank 1 %q: want it of rank 0", log[0].String(), log[1].String())
	}
	cudaopstest.Setup(t, "2x64MiB", "")
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(3))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	for i := range x {
		if _, err := d.Step(t.Context(), x[i], y[i]); err != nil {
			t.Fatal(err)
		}
	}
	want := state(t, d)
	for r := range params {
		if d := apart(params[r], want); !(d < 1e-6) || !slices.Equal(params[r], params[0]) {
			t.Errorf("rank %d: parameters are %.3g apart", r, d)
		}
	}
}
