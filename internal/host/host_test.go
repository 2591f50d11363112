package host

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/tandem-train/tandem/internal/ir"
)

// rig is a program on memory of its own.
type rig struct {
	program *ir.Program
	dev     *Device
	mem     [ir.NumRegions]ir.DeviceMemory
	exe     ir.Executable
	runtime ir.Runtime
}

// newRig compiles parts for threads. All memory is random numbers near 0, the same every time.
func newRig(tb testing.TB, threads int, size [ir.NumRegions]int, parts ...ir.Part) *rig {
	tb.Helper()
	p, err := ir.Compile("test", size, ir.Target{}, parts...)
	if err != nil {
		tb.Fatal(err)
	}
	r := &rig{program: p, dev: Open(threads), runtime: ir.Runtime{Seed: 7, Step: 3, FirstSample: 5}}
	tb.Cleanup(func() {
		if err := r.dev.Close(); err != nil {
			tb.Error(err)
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	for k := range ir.NumRegions {
		if p.Size[k] == 0 {
			continue
		}
		if r.mem[k], err = r.dev.Alloc(p.Bytes(k)); err != nil {
			tb.Fatal(err)
		}
		f := r.floats(k)
		for i := range f {
			f[i] = float32(rng.NormFloat64())
		}
	}
	if r.exe, err = r.dev.Load(p, r.mem); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.exe.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// floats is the memory of a region.
func (r *rig) floats(k ir.Region) []float32 {
	if r.mem[k] == nil {
		return nil
	}
	b := r.mem[k].Host()
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func (r *rig) run(tb testing.TB) {
	tb.Helper()
	if err := r.exe.Run(context.Background(), &r.runtime); err != nil {
		tb.Fatal(err)
	}
}

// slots hands out places of regions.
type slots [ir.NumRegions]int

func (s *slots) slot(r ir.Region, t ir.DType, dims ...int) *ir.Slot {
	out := &ir.Slot{Region: r, Name: r.String(), Offset: s[r], Shape: dims, DType: t}
	s[r] = out.End()
	return out
}

// busy is a graph with every kind of step that cuts its work, on shapes large enough to be cut.
func busy() (g *ir.Graph, size slots) {
	g = &ir.Graph{}
	in := func(dims ...int) *ir.Value { return g.Read(size.slot(ir.Input, ir.F32, dims...)) }
	out := func(v *ir.Value) { g.Store(size.slot(ir.Output, v.DType, v.Shape...), v) }
	x, c := in(32, 24, 14, 14), in(24, 1, 1)
	y := g.Map(ir.Tanh, g.Plus(g.Times(x, c), x))
	out(y)
	out(g.Sum(y, 0, 2, 3))
	out(g.Sum(g.Map(ir.Square, y)))
	out(g.Reduce(ir.MaxOf, y, 3))
	a := in(3000, 40)
	out(g.Sum(a, 0))
	out(g.Sum(a, 1))
	out(g.Sum(in(3000, 300), 0))
	out(g.Sum(in(4, 50000), 1))
	out(g.Sum(in(300, 200, 5), 1))
	out(g.T(in(500, 300)))
	out(g.Times(a, g.Map(ir.Lt, g.Rand(9, 3000, 40), g.Const(0.5))))
	out(g.MatMul(in(130, 70), in(70, 90)))
	out(g.MatMul(g.T(in(900, 40)), in(900, 30)))
	out(g.Add(ir.Softmax{}, nil, in(700, 100)))
	out(g.Add(ir.Concat{Axis: 1}, nil, a, in(3000, 7)))
	window := ir.Window{Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
	w := in(16, 24, 3, 3)
	z := g.Add(ir.Conv2d{Conv: window}, nil, x, w)
	out(z)
	out(g.Add(ir.Conv2dGradX{Conv: window, In: [4]int(x.Shape)}, nil, w, z))
	out(g.Add(ir.Conv2dGradW{Conv: window}, nil, x, z))
	pool := ir.Window{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: [2]int{1, 1}}
	p := g.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: pool}, nil, x)
	out(p)
	out(g.Add(ir.Pool2dGrad{Mode: ir.MaxPool, Pool: pool}, nil, x, p))
	return g, size
}

func TestThreadsDoNotChangeBits(t *testing.T) {
	var want []uint32
	for _, threads := range []int{1, 2, 3, 7} {
		g, size := busy()
		r := newRig(t, threads, size, ir.Part{Graph: g})
		r.run(t)
		var got []uint32
		for _, x := range r.floats(ir.Output) {
			got = append(got, math.Float32bits(x))
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d threads and 1 give different bits", threads)
		}
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	g, size := busy()
	r := newRig(t, 2, size, ir.Part{Graph: g})
	if n := testing.AllocsPerRun(5, func() { r.run(t) }); n > 0 {
		t.Errorf("a run allocates %v times", n)
	}
}

// A sum of many equal numbers is where float32 accumulators stop: 2^24 additions of 0.1 to one would end near 2^21.
func TestSumsAreAccurate(t *testing.T) {
	const n = 1 << 22
	for _, c := range []struct {
		name  string
		shape []int
		axes  []int
	}{
		{"all", []int{n}, nil},
		{"rows", []int{4, n / 4}, []int{1}},
		{"columns", []int{n / 128, 128}, []int{0}},
		{"short columns", []int{n / 8, 8}, []int{0}},
		{"outer and inner", []int{n / 4096, 4, 1024}, []int{0, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var size slots
			g := &ir.Graph{}
			in := size.slot(ir.Input, ir.F32, c.shape...)
			sum := g.Sum(g.Read(in), c.axes...)
			g.Store(size.slot(ir.Output, ir.F32, sum.Shape...), sum)
			r := newRig(t, 2, size, ir.Part{Graph: g})
			x := r.floats(ir.Input)
			for i := range x {
				x[i] = 0.1
			}
			r.run(t)
			want := float64(float32(0.1)) * float64(n/sum.Shape.Size())
			for _, got := range r.floats(ir.Output) {
				if math.Abs(float64(got)-want) > 2e-6*want {
					t.Fatalf("sum %v, want %v", got, want)
				}
			}
		})
	}
}

// cancelling is a Comm that ends the run's context when it is asked for anything.
type cancelling struct{ cancel context.CancelFunc }

func (c cancelling) Collective(context.Context, ir.Collective, []float32) error {
	c.cancel()
	return nil
}

// update is a program that sums gradients over ranks, either before or in the middle of the steps that write parameters.
func update(between bool) (size slots, parts []ir.Part, param, state *ir.Slot) {
	param, grad := size.slot(ir.Params, ir.F32, 10), size.slot(ir.Grads, ir.F32, 10)
	state = size.slot(ir.State, ir.F32, 10)
	first, second := &ir.Graph{}, &ir.Graph{}
	first.Store(param, first.Minus(first.Read(param), first.Read(grad)))
	second.Store(state, second.Shift(second.Read(state), 1))
	sum := ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce, ActiveOnly: true}, On: grad}
	parts = []ir.Part{sum, {Graph: first}, {Graph: second}}
	if between {
		parts[0], parts[1] = parts[1], parts[0]
	}
	return size, parts, param, state
}

func TestCancelBeforeTheUpdate(t *testing.T) {
	size, parts, _, _ := update(false)
	r := newRig(t, 1, size, parts...)
	params, state := slices.Clone(r.floats(ir.Params)), slices.Clone(r.floats(ir.State))
	ctx, cancel := context.WithCancel(context.Background())
	err := r.exe.Run(ctx, &ir.Runtime{Comm: cancelling{cancel}})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "host: test: step 1 ") {
		t.Errorf("error %v: want one that is context.Canceled and names step 1", err)
	}
	if !slices.Equal(r.floats(ir.Params), params) || !slices.Equal(r.floats(ir.State), state) {
		t.Error("a canceled run changed parameters or state")
	}
}

func TestCancelWithinTheUpdate(t *testing.T) {
	size, parts, _, _ := update(true)
	r := newRig(t, 1, size, parts...)
	state := r.floats(ir.State)[0]
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.exe.Run(ctx, &ir.Runtime{Comm: cancelling{cancel}}); err != nil {
		t.Fatalf("a run that had begun its update stopped: %v", err)
	}
	if got := r.floats(ir.State)[0]; got != state+1 {
		t.Errorf("state %v, want %v: the update is half done", got, state+1)
	}
}

type failing struct{ err error }

func (c failing) Collective(context.Context, ir.Collective, []float32) error { return c.err }

func TestCommErrorNamesTheStep(t *testing.T) {
	size, parts, _, _ := update(false)
	r := newRig(t, 1, size, parts...)
	lost := errors.New("rank 2 is gone")
	err := r.exe.Run(context.Background(), &ir.Runtime{Comm: failing{lost}})
	if !errors.Is(err, lost) || !strings.HasPrefix(err.Error(), "host: test: step 0 grads (Collective): ") {
		t.Errorf("error %q", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	var size slots
	g := &ir.Graph{}
	x := g.Read(size.slot(ir.Input, ir.F32, 100))
	g.Store(size.slot(ir.Output, ir.F32, 100), g.Neg(x))
	r := newRig(t, 1, size, ir.Part{Graph: g})
	small, err := r.dev.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	bad := r.mem
	bad[ir.Input] = small
	if _, err := r.dev.Load(r.program, bad); err == nil || !strings.Contains(err.Error(), "region input has 8 bytes, the program needs 400") {
		t.Errorf("memory too small: error %v", err)
	}
	bad[ir.Input] = remote{}
	if _, err := r.dev.Load(r.program, bad); err == nil || !strings.Contains(err.Error(), "region input is not host memory") {
		t.Errorf("memory of a card: error %v", err)
	}
	broken := *r.program
	broken.Steps = slices.Clone(broken.Steps)
	broken.Steps[0].In = slices.Clone(broken.Steps[0].In)
	broken.Steps[0].In[0].Offset = 1
	if _, err := r.dev.Load(&broken, r.mem); err == nil || !strings.Contains(err.Error(), "past the 100 elements of input") {
		t.Errorf("operand out of its region: error %v", err)
	}
	if err := r.exe.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.exe.Run(context.Background(), &ir.Runtime{}); err == nil {
		t.Error("a closed executable ran")
	}
}

// remote is memory that the host can't address.
type remote struct{ ir.DeviceMemory }

func (remote) Host() []byte { return nil }
func (remote) Len() int64   { return 400 }

func TestMemory(t *testing.T) {
	d := Open(1)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := d.Alloc(-1); err == nil {
		t.Error("a negative size was allocated")
	}
	for _, n := range []int64{0, 1, 63, 64, 1000} {
		m, err := d.Alloc(n)
		if err != nil || m.Len() != n {
			t.Fatalf("alloc %d: %d bytes, error %v", n, m.Len(), err)
		}
		if n > 0 && uintptr(unsafe.Pointer(&m.Host()[0]))%64 != 0 {
			t.Errorf("%d bytes do not start on a cache line", n)
		}
		if err := m.Write(n-1, []byte{1, 2}); err == nil {
			t.Errorf("wrote past the end of %d bytes", n)
		}
		if err := m.Read(-1, make([]byte, 1)); err == nil {
			t.Errorf("read before the start of %d bytes", n)
		}
		if err := m.Free(); err != nil {
			t.Error(err)
		}
		if err := m.Free(); err == nil {
			t.Error("freed twice")
		}
		if err := m.Read(0, nil); err == nil {
			t.Error("read after Free")
		}
	}
}
