package dp_test

import (
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// TestFrugal: large programs, whose steps and values are ordered and placed for little memory, train as others do.
func TestFrugal(t *testing.T) {
	for _, tk := range tasks() {
		for name, opts := range map[string][]dp.Option{"one card": nil, "in parts": {dp.MicroBatches(3)}, "three cards": {dp.DeviceIDs(0, 1, 2)}} {
			t.Run(tk.name+"/"+name, func(t *testing.T) {
				x, y := batches(tk, 6, 9)
				train := func(more ...dp.Option) (r result) {
					cudaopstest.Setup(t, "3", "")
					d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat([]dp.Option{dp.Seed(3), dp.DeviceIDs(0)}, tk.opts, opts, more)...)
					if err != nil {
						t.Fatal(err)
					}
					defer closed(t, d)
					for i := range x {
						loss, err := d.Step(t.Context(), x[i], y[i])
						if err != nil {
							t.Fatal(err)
						}
						r.losses = append(r.losses, loss)
					}
					r.params = state(t, d)
					return r
				}
				sameTraining(t, train(dp.FromLarge()), train())
			})
		}
	}
}

// TestLargeProgramsTakeLittle: a deep model's values lie where its gradients come later.
func TestLargeProgramsTakeLittle(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	const width, layers = 64, 8
	var model []nn.Module
	for range layers {
		model = append(model, nn.Linear(width, width), nn.ReLU())
	}
	tk := task{in: []int{width}, out: 5}
	x, y := batches(tk, 1, width)
	activations := func(opts ...dp.Option) int64 {
		d, err := dp.New(nn.Sequential(append(model, nn.Linear(width, 5))...), nn.CrossEntropy(), nn.SGD(0.1), append(opts, dp.Seed(1))...)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, d)
		if _, err := d.Step(t.Context(), x[0], y[0]); err != nil {
			t.Fatal(err)
		}
		return d.Memory()[0].Activations
	}
	plain, frugal := activations(), activations(dp.FromLarge())
	if frugal > plain/2 {
		t.Errorf("activations take %d bytes, plainly %d: want half of that at most", frugal, plain)
	}
	t.Logf("%d bytes, plainly %d", frugal, plain)
}

// loads notes the programs that a device loads.
type loads struct {
	ir.Device
	targets *[]ir.Target
}

func (l loads) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	*l.targets = append(*l.targets, p.Target)
	return l.Device.Load(p, mem)
}

// TestLargeIsNotTight: a large program takes little memory for its values, but beside them all that makes it fast; one that has to keep within bounds saves
// that, too.
func TestLargeIsNotTight(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	tk := tasks()[0]
	x, y := batches(tk, 1, 9)
	for tight, opt := range map[bool]dp.Option{false: dp.FromLarge(), true: dp.Recompute(1 << 20)} {
		var targets []ir.Target
		d, err := dp.New(tk.model(), tk.loss(), tk.opt(), opt, dp.DeviceIDs(dp.Host),
			dp.WrapDevices(func(d ir.Device) ir.Device { return loads{d, &targets} }))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Step(t.Context(), x[0], y[0]); err != nil {
			t.Fatal(err)
		}
		closed(t, d)
		if !slices.ContainsFunc(targets, func(t ir.Target) bool { return t.Frugal && t.Tight == tight }) ||
			slices.ContainsFunc(targets, func(t ir.Target) bool { return t.Frugal && t.Tight != tight }) {
			t.Errorf("of %+v those that are frugal are to be tight: %t", targets, tight)
		}
	}
}
