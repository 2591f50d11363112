package ref_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
	"github.com/tandem-train/tandem/internal/philox"
)

// last evaluates g, whose slots all lie in a small Input region holding in, and returns its last value.
func last(t *testing.T, g *ir.Graph, in ...float64) []float64 {
	t.Helper()
	if err := g.Err(); err != nil {
		t.Fatal(err)
	}
	var size [ir.NumRegions]int
	size[ir.Input] = len(in)
	e := ref.NewEnv(size)
	copy(e.Memory[ir.Input], in)
	v, err := ref.Values(e, g)
	if err != nil {
		t.Fatal(err)
	}
	return v[len(v)-1]
}

func near(a, b []float64, tol float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool {
		return x == y || math.Abs(x-y) <= tol || math.IsNaN(x) && math.IsNaN(y)
	})
}

func count(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i)
	}
	return x
}

func TestOps(t *testing.T) {
	ints := func(g *ir.Graph, x []int32, dims ...int) *ir.Value {
		return g.Add(ir.Data{Content: &ir.Content{Ints: x}}, dims)
	}
	window := func(k, s, p, d int) ir.Window {
		return ir.Window{Kernel: [2]int{k, k}, Stride: [2]int{s, s}, Padding: [2]int{p, p}, Dilation: [2]int{d, d}, Groups: 1}
	}
	inf, nan := math.Inf(1), math.NaN()
	ln := math.Log
	for name, c := range map[string]struct {
		build func(g *ir.Graph) *ir.Value
		want  []float64
	}{
		"const": {func(g *ir.Graph) *ir.Value { return g.Const(2.5, 2) }, []float64{2.5, 2.5}},
		"iota":  {func(g *ir.Graph) *ir.Value { return g.Iota(1, 2, 3) }, []float64{0, 1, 2, 0, 1, 2}},
		"float": {func(g *ir.Graph) *ir.Value { return g.Map(ir.Float, ints(g, []int32{-7, 1 << 30}, 2)) }, []float64{-7, 1 << 30}},
		"map broadcast": {func(g *ir.Graph) *ir.Value {
			return g.Minus(g.Data([]float32{1, 2}, 2, 1), g.Data([]float32{10, 20, 30}, 3))
		}, []float64{-9, -19, -29, -8, -18, -28}},
		"where": {func(g *ir.Graph) *ir.Value {
			return g.Select(g.Data([]float32{0, 1, -2}, 3), g.Const(5), g.Const(6))
		}, []float64{6, 5, 5}},
		"reshape":   {func(g *ir.Graph) *ir.Value { return g.Reshape(g.Data(count(4), 2, 2), 4) }, []float64{0, 1, 2, 3}},
		"transpose": {func(g *ir.Graph) *ir.Value { return g.T(g.Data(count(6), 2, 3)) }, []float64{0, 3, 1, 4, 2, 5}},
		"transpose 3": {func(g *ir.Graph) *ir.Value { return g.Transpose(g.Data(count(6), 1, 2, 3), 2, 0, 1) },
			[]float64{0, 3, 1, 4, 2, 5}},
		"slice": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Slice{Start: []int{0, 1}, Stop: []int{2, 4}, Step: []int{1, 2}}, nil, g.Data(count(8), 2, 4))
		}, []float64{1, 3, 5, 7}},
		"unslice": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Unslice{Start: []int{1}, Stop: []int{6}, Step: []int{2}}, nil, g.Data([]float32{7, 8}, 2))
		}, []float64{0, 7, 0, 8, 0, 0}},
		"concat": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Concat{Axis: 1}, nil, g.Data(count(2), 2, 1), g.Data([]float32{5, 6, 7, 8}, 2, 2))
		}, []float64{0, 5, 6, 1, 7, 8}},
		"gather": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Gather{}, nil, g.Data(count(6), 3, 2), ints(g, []int32{2, 0, 2}, 3))
		}, []float64{4, 5, 0, 1, 4, 5}},
		"scatter add": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.ScatterAdd{Rows: 3}, nil, ints(g, []int32{2, 0, 2}, 3), g.Data(count(6), 3, 2))
		}, []float64{2, 3, 0, 0, 4, 6}},
		"check passes": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.CheckIndex{Bound: 3, Ignore: -100, What: "label"}, nil, ints(g, []int32{0, -100, 2}, 3))
		}, []float64{0, -100, 2}},
		"sum":       {func(g *ir.Graph) *ir.Value { return g.Reduce(ir.Sum, g.Data(count(6), 2, 3), 0) }, []float64{3, 5, 7}},
		"max":       {func(g *ir.Graph) *ir.Value { return g.Reduce(ir.MaxOf, g.Data([]float32{-3, -1, -2, -9}, 2, 2), 1) }, []float64{-1, -2}},
		"min all":   {func(g *ir.Graph) *ir.Value { return g.Reduce(ir.MinOf, g.Data([]float32{3, 1, 2, 9}, 2, 2)) }, []float64{1}},
		"max empty": {func(g *ir.Graph) *ir.Value { return g.Reduce(ir.MaxOf, g.Const(1, 0)) }, []float64{-inf}},
		"max nan": {func(g *ir.Graph) *ir.Value {
			return g.Reduce(ir.MaxOf, g.Data([]float32{1, float32(nan), 2}, 3))
		}, []float64{nan}},
		"argmax": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.ArgMax{Axis: 1}, nil, g.Data([]float32{1, 4, 4, -5, -6, -5}, 2, 3))
		}, []float64{1, 0}},
		"matmul": {func(g *ir.Graph) *ir.Value {
			return g.MatMul(g.Data([]float32{1, 2, 3, 4}, 2, 2), g.Data([]float32{5, 6, 7, 8}, 2, 2))
		}, []float64{19, 22, 43, 50}},
		"matmul batched": {func(g *ir.Graph) *ir.Value {
			return g.MatMul(g.Data(count(4), 2, 1, 2), g.Data([]float32{1, 10, 100, 1000}, 2, 2, 1))
		}, []float64{10, 3200}},
		"matmul empty": {func(g *ir.Graph) *ir.Value { return g.MatMul(g.Const(1, 1, 0), g.Const(1, 0, 2)) }, []float64{0, 0}},
		"conv": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Conv2d{Conv: window(2, 1, 0, 1)}, nil, g.Data(count(9), 1, 1, 3, 3), g.Data([]float32{1, 0, 0, -1}, 1, 1, 2, 2))
		}, []float64{-4, -4, -4, -4}},
		"conv padded, strided": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Conv2d{Conv: window(3, 2, 1, 1)}, nil, g.Data(count(9), 1, 1, 3, 3), g.Const(1, 1, 1, 3, 3))
		}, []float64{0 + 1 + 3 + 4, 1 + 2 + 4 + 5, 3 + 4 + 6 + 7, 4 + 5 + 7 + 8}},
		"conv dilated": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Conv2d{Conv: window(2, 1, 0, 2)}, nil, g.Data(count(9), 1, 1, 3, 3), g.Data([]float32{1, 10, 100, 1000}, 1, 1, 2, 2))
		}, []float64{0 + 20 + 600 + 8000}},
		"conv grouped": {func(g *ir.Graph) *ir.Value {
			w := window(1, 1, 0, 1)
			w.Groups = 2
			return g.Add(ir.Conv2d{Conv: w}, nil, g.Data([]float32{1, 2, 3, 4}, 1, 4, 1, 1), g.Data([]float32{1, 10, 100, 1000}, 2, 2, 1, 1))
		}, []float64{21, 4300}},
		"max pool": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: window(2, 2, 1, 1)}, nil, g.Data([]float32{-1, -2, -3, -4}, 1, 1, 2, 2))
		}, []float64{-1, -2, -3, -4}},
		"avg pool": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Pool2d{Mode: ir.AvgPool, Pool: window(2, 1, 1, 1)}, nil, g.Data([]float32{4, 8}, 1, 1, 1, 2))
		}, []float64{1, 3, 2, 1, 3, 2}},
		"avg pool without padding": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Pool2d{Mode: ir.AvgPoolNoPad, Pool: window(2, 1, 1, 1)}, nil, g.Data([]float32{4, 8}, 1, 1, 1, 2))
		}, []float64{4, 6, 8, 4, 6, 8}},
		"adaptive pool": {func(g *ir.Graph) *ir.Value { // windows 0..1, 1..3, 3..4
			return g.Add(ir.Pool2d{Mode: ir.AdaptiveAvgPool, OutHW: [2]int{1, 3}}, nil, g.Data(count(5), 1, 1, 1, 5))
		}, []float64{0.5, 2, 3.5}},
		"max pool gradient, ties": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Pool2dGrad{Mode: ir.MaxPool, Pool: window(2, 1, 0, 1)}, nil, g.Data([]float32{1, 7, 7, 1, 7, 1}, 1, 1, 2, 3), g.Data([]float32{10, 100}, 1, 1, 1, 2))
		}, []float64{0, 110, 0, 0, 0, 0}},
		"softmax": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Softmax{}, nil, g.Map(ir.Log, g.Data([]float32{1, 3, 5, 5}, 2, 2)))
		}, []float64{0.25, 0.75, 0.5, 0.5}},
		"softmax of large numbers": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Softmax{}, nil, g.Data([]float32{1e30, 1e30}, 2))
		}, []float64{0.5, 0.5}},
		"log softmax": {func(g *ir.Graph) *ir.Value {
			return g.Add(ir.Softmax{Log: true}, nil, g.Map(ir.Log, g.Data([]float32{1, 3}, 2)))
		}, []float64{-ln(4), ln(3) - ln(4)}},
		"cross entropy": {func(g *ir.Graph) *ir.Value {
			logits := g.Map(ir.Log, g.Data([]float32{1, 3, 2, 2, 5, 3}, 3, 2))
			return g.Add(ir.CrossEntropy{Ignore: -100}, nil, logits, ints(g, []int32{1, -100, 0}, 3), g.Data([]float32{10, 1}, 2))
		}, []float64{-ln(0.75), 0, -10 * ln(0.625)}},
		"cross entropy, smoothed": {func(g *ir.Graph) *ir.Value {
			logits := g.Map(ir.Log, g.Data([]float32{1, 3}, 1, 2))
			return g.Add(ir.CrossEntropy{Smoothing: 0.2, Ignore: -100}, nil, logits, ints(g, []int32{1}, 1), g.Data([]float32{10, 1}, 2))
		}, []float64{-0.8*ln(0.75) - 0.1*(10*ln(0.25)+ln(0.75))}},
		"cross entropy gradient": {func(g *ir.Graph) *ir.Value {
			logits := g.Map(ir.Log, g.Data([]float32{1, 3, 2, 2}, 2, 2))
			return g.Add(ir.CrossEntropyGrad{Ignore: 0}, nil, logits, ints(g, []int32{1, 0}, 2), g.Const(1, 2), g.Data([]float32{2, 2}, 2))
		}, []float64{0.5, -0.5, 0, 0}},
		"all-reduce alone": {func(g *ir.Graph) *ir.Value { return g.Add(ir.AllReduceSum{}, nil, g.Const(3)) }, []float64{3}},
	} {
		t.Run(name, func(t *testing.T) {
			var g ir.Graph
			c.build(&g)
			if got := last(t, &g); !near(got, c.want, 1e-12) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Two ranks, and the whole batch, see the same random numbers: the words of the stream in order.
func TestRand(t *testing.T) {
	var g ir.Graph
	g.Rand(9, 2, 3)
	e := ref.NewEnv([ir.NumRegions]int{})
	e.Runtime = ir.Runtime{Seed: 1, Step: 2, FirstSample: 4}
	v, err := ref.Values(e, &g)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]float32, 6)
	philox.New(e.Runtime.Key(), 9).FillUniform(want, 12)
	for i, w := range want {
		if v[0][i] != float64(w) {
			t.Errorf("element %d: got %v, want %v", i, v[0][i], w)
		}
	}
}

func TestCheckIndexFails(t *testing.T) {
	var g ir.Graph
	in := &ir.Slot{Region: ir.Input, Name: "y", Shape: ir.Of(3), DType: ir.I32}
	out := &ir.Slot{Region: ir.Output, Name: "out", Shape: ir.Of(3), DType: ir.I32}
	g.Store(out, g.Add(ir.CheckIndex{Bound: 4, What: "label"}, nil, g.Read(in)))
	e := ref.NewEnv([ir.NumRegions]int{ir.Input: 3, ir.Output: 3})
	copy(e.At(in), []float64{3, 4, -1})
	err := ref.Eval(e, ir.Part{Graph: &g})
	var ie *ir.IndexError
	if !errors.As(err, &ie) || *ie != (ir.IndexError{What: "label", Index: 1, Value: 4, Bound: 4}) {
		t.Fatalf("got %v", err)
	}
	if got := e.At(out); !slices.Equal(got, []float64{0, 0, 0}) {
		t.Errorf("a failed graph stored %v", got)
	}
}

// Reads see the content from before the stores of their graph, and the stores of the graphs before it.
func TestStoresAtEnd(t *testing.T) {
	a := &ir.Slot{Region: ir.Params, Name: "a", Shape: ir.Of(2)}
	b := &ir.Slot{Region: ir.Params, Name: "b", Offset: 2, Shape: ir.Of(2)}
	var swap, double ir.Graph
	swap.Store(a, swap.Read(b))
	swap.Store(b, swap.Read(a))
	double.Store(a, double.Scale(double.Read(a), 2))
	e := ref.NewEnv([ir.NumRegions]int{ir.Params: 4})
	copy(e.Memory[ir.Params], []float64{1, 2, 3, 4})
	if err := ref.Eval(e, ir.Part{Graph: &swap}, ir.Part{Graph: &double}); err != nil {
		t.Fatal(err)
	}
	if got := e.Memory[ir.Params]; !slices.Equal(got, []float64{6, 8, 1, 2}) {
		t.Errorf("got %v", got)
	}
}

func TestCollectives(t *testing.T) {
	for _, c := range []struct {
		op   ir.Collective
		want string
	}{
		{ir.Collective{Kind: ir.AllReduce}, "[[111 222 333] [111 222 333] [111 222 333]]"},
		{ir.Collective{Kind: ir.AllReduce, ActiveOnly: true}, "[[11 22 33] [11 22 33] [100 200 300]]"},
		{ir.Collective{Kind: ir.ReduceTo, Root: 1}, "[[1 2 3] [111 222 333] [100 200 300]]"},
		{ir.Collective{Kind: ir.BroadcastFrom, Root: 1}, "[[10 20 30] [10 20 30] [10 20 30]]"},
		{ir.Collective{Kind: ir.ReduceScatter}, "[[111 2 3] [10 222 30] [100 200 333]]"},
		{ir.Collective{Kind: ir.AllGather}, "[[1 20 300] [1 20 300] [1 20 300]]"},
	} {
		t.Run(fmt.Sprint(c.op), func(t *testing.T) {
			slot := &ir.Slot{Region: ir.Grads, Name: "g", Shape: ir.Of(3)}
			var envs []*ref.Env
			var parts [][]ir.Part
			for r := range 3 {
				e := ref.NewEnv([ir.NumRegions]int{ir.Grads: 3})
				for i := range 3 {
					e.At(slot)[i] = math.Pow10(r) * float64(i+1)
				}
				e.Idle = r == 2
				envs = append(envs, e)
				parts = append(parts, []ir.Part{{Collective: &c.op, On: slot}})
			}
			if err := ref.EvalRanks(envs, parts); err != nil {
				t.Fatal(err)
			}
			var got [][]float64
			for _, e := range envs {
				got = append(got, e.At(slot))
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}

// A mean over uneven shares, and then a collective in which the idle rank, listed first, takes part.
func TestAllReduceSumInLockstep(t *testing.T) {
	slot := &ir.Slot{Region: ir.Grads, Name: "g", Shape: ir.Of(1)}
	var envs []*ref.Env
	var parts [][]ir.Part
	for _, n := range []int{0, 3, 1} {
		g := &ir.Graph{}
		sum := g.Sum(g.Const(float64(10*n), n, 1), 0)
		total := g.Add(ir.AllReduceSum{}, nil, sum)
		if n > 0 {
			g.Store(slot, total)
		}
		e := ref.NewEnv([ir.NumRegions]int{ir.Grads: 1})
		e.Idle = n == 0
		envs = append(envs, e)
		parts = append(parts, []ir.Part{{Graph: g}, {Collective: &ir.Collective{Kind: ir.BroadcastFrom, Root: 2}, On: slot}})
	}
	if err := ref.EvalRanks(envs, parts); err != nil {
		t.Fatal(err)
	}
	for r, e := range envs {
		if got := e.At(slot)[0]; got != 3*30+10 {
			t.Errorf("rank %d: got %v", r, got)
		}
	}
}

func TestRanksOutOfStep(t *testing.T) {
	slot := &ir.Slot{Region: ir.Grads, Name: "g", Shape: ir.Of(1)}
	all := ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce}, On: slot}
	size := [ir.NumRegions]int{ir.Grads: 1}
	err := ref.EvalRanks([]*ref.Env{ref.NewEnv(size), ref.NewEnv(size)}, [][]ir.Part{{all}, nil})
	if err == nil {
		t.Error("a rank that never comes to a collective is no error")
	}
}
