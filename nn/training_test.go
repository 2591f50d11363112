package nn

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/host"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// bench is the memory of one rank, and what runs programs on it.
type bench interface {
	set(s *ir.Slot, x []float64)
	get(s *ir.Slot) []float64
	run(t *testing.T)
}

// refBench computes in float64.
type refBench struct {
	env   *ref.Env
	parts []ir.Part
}

func newRefBench(_ *testing.T, size [ir.NumRegions]int, parts ...ir.Part) bench {
	return &refBench{ref.NewEnv(size), parts}
}

func (b *refBench) set(s *ir.Slot, x []float64) { copy(b.env.At(s), x) }
func (b *refBench) get(s *ir.Slot) []float64    { return b.env.At(s) }

func (b *refBench) run(t *testing.T) {
	t.Helper()
	if err := ref.Eval(b.env, b.parts...); err != nil {
		t.Fatal(err)
	}
}

// hostBench compiles and computes in float32.
type hostBench struct {
	mem [ir.NumRegions]ir.DeviceMemory
	exe ir.Executable
}

func newHostBench(t *testing.T, size [ir.NumRegions]int, parts ...ir.Part) bench {
	t.Helper()
	p, err := ir.Compile("train", size, ir.Target{}, parts...)
	if err != nil {
		t.Fatal(err)
	}
	dev := host.Open(2)
	closeAtEnd(t, dev)
	b := new(hostBench)
	for r := range b.mem {
		if n := p.Bytes(ir.Region(r)); n > 0 {
			if b.mem[r], err = dev.Alloc(n); err != nil {
				t.Fatal(err)
			}
			clear(b.mem[r].Host())
		}
	}
	if b.exe, err = dev.Load(p, b.mem); err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, b.exe)
	return b
}

func (b *hostBench) bytes(s *ir.Slot) []byte {
	return b.mem[s.Region].Host()[4*s.Offset : 4*s.End()]
}

func (b *hostBench) set(s *ir.Slot, x []float64) {
	to := b.bytes(s)[:0]
	for _, v := range x {
		to = appendElement(to, v, s.DType)
	}
}

func (b *hostBench) get(s *ir.Slot) []float64 { return floatsOf(b.bytes(s)) }

func (b *hostBench) run(t *testing.T) {
	t.Helper()
	if err := b.exe.Run(context.Background(), new(ir.Runtime)); err != nil {
		t.Fatal(err)
	}
}

// trainer takes whole training steps with what a [Compiler] makes.
type trainer struct {
	t     *testing.T
	c     *Compiler
	on    bench
	train *TrainGraph
	step  int
}

func newTrainer(t *testing.T, m Module, loss Loss, opt Optimizer, input []int, newBench func(*testing.T, [ir.NumRegions]int, ...ir.Part) bench) *trainer {
	t.Helper()
	l, err := NewLayout(m)
	if err != nil {
		t.Fatal(err)
	}
	tr := &trainer{t: t, c: &Compiler{Model: m, Loss: loss, Optimizer: opt, Layout: l}}
	n := input[0]
	if tr.train, err = tr.c.Train(Share{Input: input, Samples: n, Total: n}); err != nil {
		t.Fatal(err)
	}
	update, err := tr.c.Update(0, l.Elements, n, false)
	if err != nil {
		t.Fatal(err)
	}
	var size [ir.NumRegions]int
	size[ir.Params], size[ir.Grads], size[ir.Buffers] = l.Elements, l.Elements+GradTail, l.BufferElements
	size[ir.State], size[ir.Hyper] = tr.c.StateElements(l.Elements), len(opt.Hyper())
	size[ir.Input], size[ir.Output] = max(tr.train.X.End(), tr.train.Y.End()), LossSlot().End()
	tr.on = newBench(t, size, ir.Part{Graph: tr.train.Graph}, ir.Part{Graph: update})
	for _, p := range l.Params {
		tr.on.set(p.Slot, widened(p.Parameter.Data()))
	}
	for _, b := range l.Buffers {
		tr.on.set(b.Slot, widened(b.Buffer.Data()))
	}
	return tr
}

// next trains on a batch and returns its loss.
func (tr *trainer) next(x, y []float64) float64 {
	tr.t.Helper()
	tr.step++
	tr.on.set(tr.train.X, x)
	tr.on.set(tr.train.Y, y)
	for i, v := range tr.c.Optimizer.HyperAt(tr.step, tr.c.Optimizer.LR()) {
		tr.on.set(tr.c.HyperSlots()[i], []float64{v})
	}
	tr.on.run(tr.t)
	return tr.on.get(LossSlot())[0]
}

// compare demands that parameters and buffers are those of the roles "final.NAME".
func (tr *trainer) compare(c *fixtureCase, tol float64) {
	tr.t.Helper()
	for _, p := range tr.c.Layout.Params {
		compare(tr.t, p.Name, tr.on.get(p.Slot), c.at(tr.t, "final."+p.Name).data, tol)
	}
	for _, b := range tr.c.Layout.Buffers {
		compare(tr.t, b.Name, tr.on.get(b.Slot), c.at(tr.t, "final."+b.Name).data, tol)
	}
}

// TestTrainingLikeTorch follows PyTorch through whole trainings: every step's loss, and the state at the end.
func TestTrainingLikeTorch(t *testing.T) {
	eachCase(t, "training", isLayer, func(t *testing.T, c *fixtureCase) {
		x, y := c.at(t, "in.x"), c.at(t, "in.target")
		followTorch(t, c, x.shape[1:], func(step int) ([]float64, []float64) {
			return row(x, step), row(y, step)
		})
	})
}

// TestMNISTLikeTorch does so on real images.
func TestMNISTLikeTorch(t *testing.T) {
	const batch = 16
	eachCase(t, "mnist", isLayer, func(t *testing.T, c *fixtureCase) {
		images, labels := c.at(t, "in.images"), c.at(t, "in.labels")
		batches := images.shape[0] / batch
		followTorch(t, c, []int{batch, 28, 28}, func(step int) ([]float64, []float64) {
			from := step % batches * batch
			x := slices.Clone(images.data[from*28*28 : (from+batch)*28*28])
			for i, v := range x {
				x[i] = float64(float32(v) / 255)
			}
			return x, labels.data[from : from+batch]
		})
	})
}

// row is element i of the first dimension.
func row(a array, i int) []float64 {
	n := len(a.data) / a.shape[0]
	return a.data[i*n : (i+1)*n]
}

func followTorch(t *testing.T, c *fixtureCase, input []int, batch func(step int) (x, y []float64)) {
	t.Helper()
	for _, b := range []struct {
		name string
		on   func(*testing.T, [ir.NumRegions]int, ...ir.Part) bench
		tol  float64
	}{{"ref", newRefBench, 1e-6}, {"host", newHostBench, 1e-5}} {
		t.Run(b.name, func(t *testing.T) {
			m := buildModule(t, c.Op, c.Args)
			loadRoles(t, m, c, "init.")
			opt := c.Args["optimizer"].([]any)
			tr := newTrainer(t, m, CrossEntropy(), buildOptimizer(t, opt[0].(string), opt[1].(map[string]any)), input, b.on)
			if len(tr.train.Unused) > 0 {
				t.Errorf("parameters %v get no gradient", tr.train.Unused)
			}
			for i, want := range c.at(t, "losses").data {
				if got := tr.next(batch(i)); !(math.Abs(got-want) <= b.tol*max(1, math.Abs(want))) {
					t.Fatalf("loss of step %d is %v, want %v", i, got, want)
				}
			}
			tr.compare(c, b.tol)
		})
	}
}

// TestUnevenMean: class weights and ignored labels make the mean that of the whole batch, whatever share has them.
func TestUnevenMean(t *testing.T) {
	m := Sequential(Linear(2, 3))
	if err := Initialize(m, 1); err != nil {
		t.Fatal(err)
	}
	x := []float64{1, 2, -1, 0.5, 3, -2, 0.25, 1}
	y := []float64{0, 2, -100, 1}
	loss := CrossEntropy(ClassWeights(1, 2, 5))

	// share computes gradient and tail of samples lo to hi-1 of the four.
	l, err := NewLayout(m)
	if err != nil {
		t.Fatal(err)
	}
	c := &Compiler{Model: m, Loss: loss, Optimizer: SGD(0.1), Layout: l}
	share := func(lo, hi int) []float64 {
		tg, err := c.Train(Share{Input: ir.Of(hi-lo, 2), Samples: hi - lo, Total: 4})
		if err != nil {
			t.Fatal(err)
		}
		var size [ir.NumRegions]int
		size[ir.Params], size[ir.Grads] = l.Elements, l.Elements+GradTail
		size[ir.Input] = max(tg.X.End(), tg.Y.End())
		env := ref.NewEnv(size)
		for _, p := range l.Params {
			copy(env.At(p.Slot), widened(p.Parameter.Data()))
		}
		copy(env.At(tg.X), x[2*lo:2*hi])
		copy(env.At(tg.Y), y[lo:hi])
		if err := ref.Eval(env, ir.Part{Graph: tg.Graph}); err != nil {
			t.Fatal(err)
		}
		return env.Memory[ir.Grads]
	}
	whole := share(0, 4)
	for _, cut := range []int{1, 2, 3} {
		a, b := share(0, cut), share(cut, 4)
		for i := range a {
			a[i] += b[i]
		}
		compare(t, fmt.Sprintf("gradients and tail of %d and %d samples", cut, 4-cut), a, whole, 1e-12)
	}
}
