package exec

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// update writes the golden files anew: go test ./cudaops/internal/exec -run TestGolden -update
var update = flag.Bool("update", false, "write golden files")

// String lists the kernels of a plan and what goes into the stream.
func (p *plan) String() string {
	var b strings.Builder
	for _, t := range p.texts {
		b.WriteString(t + "\n")
	}
	where := func(p place) string {
		name := p.base.String
		switch p.base {
		case scratch:
			name = func() string { return "scratch" }
		case control:
			name = func() string { return "control" }
		case pinned:
			name = func() string { return "pinned" }
		}
		return fmt.Sprintf("%s+%v", name(), float64(p.bytes)/wordBytes)
	}
	for _, s := range p.segments {
		for _, t := range s.tasks {
			fmt.Fprintf(&b, "// step %d: ", t.step)
			switch t := t.do.(type) {
			case launch:
				fmt.Fprintf(&b, "%s on %dx%d", p.kernels[t.kernel], t.blocks, max(1, t.planes))
				for _, a := range t.args {
					b.WriteString(" " + where(a))
				}
			case fill:
				fmt.Fprintf(&b, "fill %s, %d words, with %#x", where(t.to), t.n, t.word)
			case zero:
				fmt.Fprintf(&b, "clear %s, %d bytes", where(t.to), t.bytes)
			case transfer:
				fmt.Fprintf(&b, "copy %s from %s, %d words", where(t.to), where(t.from), t.bytes/wordBytes)
			default:
				fmt.Fprintf(&b, "%T", t)
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "// %s\n", [...]string{"end", fmt.Sprintf("verify before step %d", s.step), fmt.Sprintf("collective, step %d", s.step)}[s.end])
	}
	return b.String()
}

// sketch builds a program of one graph after another.
type sketch struct {
	*ir.Graph
	t     testing.TB
	size  [ir.NumRegions]int
	parts []ir.Part
}

func newSketch(t testing.TB) *sketch {
	s := &sketch{t: t}
	s.next()
	return s
}

func (s *sketch) next() {
	s.Graph = &ir.Graph{}
	s.parts = append(s.parts, ir.Part{Graph: s.Graph})
}

func (s *sketch) slot(r ir.Region, dtype ir.DType, dims ...int) *ir.Slot {
	slot := &ir.Slot{Region: r, Name: fmt.Sprint(r, s.size[r]), Offset: s.size[r], Shape: ir.Of(dims...), DType: dtype}
	s.size[r] = (slot.End() + 63) / 64 * 64
	return slot
}

func (s *sketch) in(dims ...int) *ir.Value { return s.Read(s.slot(ir.Input, ir.F32, dims...)) }
func (s *sketch) out(v *ir.Value)          { s.Store(s.slot(ir.Output, v.DType, v.Shape...), v) }

func (s *sketch) compile() *ir.Program {
	s.t.Helper()
	p, err := ir.Compile("sketch", s.size, ir.Target{}, s.parts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *sketch) plan() *plan {
	s.t.Helper()
	p, err := newPlan(s.compile(), none{}, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// update of parameters by Adam, with dropout's mask beside it.
func drawUpdate(s *sketch) {
	w, m, g := s.slot(ir.Params, ir.F32, 1001), s.slot(ir.State, ir.F32, 1001), s.slot(ir.Grads, ir.F32, 1001)
	lr := s.Read(s.slot(ir.Hyper, ir.F32))
	m1 := s.Plus(s.Scale(s.Read(m), 0.9), s.Scale(s.Read(g), 0.1))
	s.Store(m, m1)
	s.Store(w, s.Minus(s.Read(w), s.Times(s.Map(ir.Pow, lr, s.Const(3)), m1)))
	keep := s.Map(ir.Ge, s.Rand(7, 8, 12), s.Const(0.25))
	s.out(s.Times(s.Plus(s.in(8, 12), s.in(12)), keep))
}

func drawReductions(s *sketch) {
	x := s.in(64, 100)
	s.out(s.Reduce(ir.Sum, s.Map(ir.Square, x), 1))
	s.out(s.Reduce(ir.MaxOf, x, 0))
	s.out(s.Sum(s.in(4096, 256)))
}

func drawMoves(s *sketch) {
	s.out(s.Transpose(s.in(3, 40, 50), 0, 2, 1))
	s.out(s.SliceAxis(s.in(8, 16), 1, 4, 12))
	s.out(s.Add(ir.Concat{Axis: 1}, nil, s.in(4, 8), s.T(s.in(4, 4))))
	s.out(s.Add(ir.Gather{}, nil, s.in(20, 8), s.Read(s.slot(ir.Input, ir.I32, 6))))
}

func drawStep(s *sketch) {
	x, w, bias := s.in(32, 20), s.slot(ir.Params, ir.F32, 10, 20), s.slot(ir.Params, ir.F32, 10)
	labels := s.Add(ir.CheckIndex{Bound: 10, Ignore: -100, What: "label"}, nil, s.Read(s.slot(ir.Input, ir.I32, 32)))
	logits := s.Plus(s.MatMul(x, s.T(s.Read(w))), s.Read(bias))
	ones, share := s.Const(1, 10), s.Const(1.0/32, 32)
	s.out(s.Sum(s.Add(ir.CrossEntropy{Ignore: -100}, nil, logits, labels, ones)))
	d := s.Add(ir.CrossEntropyGrad{Ignore: -100}, nil, logits, labels, ones, share)
	dw, db := s.slot(ir.Grads, ir.F32, 10, 20), s.slot(ir.Grads, ir.F32, 10)
	s.Store(dw, s.MatMul(s.T(d), x))
	s.Store(db, s.Sum(d, 0))
	s.parts = append(s.parts, ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce}, On: dw})
	s.next()
	s.Store(w, s.Minus(s.Read(w), s.Scale(s.Read(dw), 0.1)))
}

func drawConv(s *sketch) {
	win := ir.Window{Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
	pool := ir.Window{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: [2]int{1, 1}}
	x := s.in(8, 3, 16, 16)
	y := s.Map(ir.Relu, s.Plus(s.Add(ir.Conv2d{Conv: win}, nil, x, s.in(4, 3, 3, 3)), s.Reshape(s.in(4), 4, 1, 1)))
	s.out(s.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: pool}, nil, y))
	s.out(s.Add(ir.Conv2dGradW{Conv: win}, nil, x, s.in(8, 4, 16, 16)))
}

var sketches = map[string]func(*sketch){
	"update": drawUpdate, "reductions": drawReductions, "moves": drawMoves, "step": drawStep, "conv": drawConv,
}

func TestGolden(t *testing.T) {
	for name, draw := range sketches {
		t.Run(name, func(t *testing.T) {
			s := newSketch(t)
			draw(s)
			got := s.plan().String()
			file := filepath.Join("testdata", name+".cu")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the plan differs from %s; if that is meant, write it anew with -update. Got\n%s", file, got)
			}
		})
	}
}

// Equal programs have equal sources: what is compiled for one is compiled for all.
func TestSourceIsTheProgramsAlone(t *testing.T) {
	for name, draw := range sketches {
		var sources []string
		for range 3 {
			s := newSketch(t)
			draw(s)
			sources = append(sources, strings.Join(s.plan().sources(), "\n"))
		}
		if sources[0] != sources[1] || sources[1] != sources[2] {
			t.Errorf("%s: three sources for one program", name)
		}
	}
}

// The same computation elsewhere in memory is the same kernel.
func TestKernelsAreShared(t *testing.T) {
	s := newSketch(t)
	for range 5 {
		s.out(s.Map(ir.Exp, s.in(100, 10)))
	}
	p := s.plan()
	if len(p.kernels) != 1 {
		t.Errorf("%d kernels: %v", len(p.kernels), p.kernels)
	}
	if n := len(p.segments[0].tasks); n != 5 {
		t.Errorf("%d launches, want 5", n)
	}
}

func TestSegments(t *testing.T) {
	checked := func(s *sketch) *ir.Value {
		best := s.Add(ir.ArgMax{Axis: 1}, nil, s.in(6, 9))
		return s.Add(ir.CheckIndex{Bound: 3, What: "token"}, nil, s.Reshape(best, 6))
	}
	ends := func(p *plan) (list []end) {
		for _, s := range p.segments {
			list = append(list, s.end)
		}
		return list
	}
	for _, c := range []struct {
		name string
		draw func(s *sketch)
		want []end
	}{
		{"elementwise", func(s *sketch) { s.out(s.Map(ir.Exp, s.in(7))) }, []end{goOn}},
		{"labels that the caller verifies", drawStep, []end{exchange, goOn}},
		{"an index that nobody has verified, and nothing to keep from harm", func(s *sketch) { s.out(checked(s)) }, []end{goOn}},
		{"an index that nobody has verified, before an update", func(s *sketch) {
			w := s.slot(ir.Params, ir.F32, 6)
			s.Store(w, s.Plus(s.Read(w), s.Map(ir.Float, checked(s))))
		}, []end{verify, goOn}},
		{"an index that a step has verified", func(s *sketch) {
			w, v := s.slot(ir.Params, ir.F32, 6, 2), s.slot(ir.Params, ir.F32, 6, 2)
			s.Store(w, s.Add(ir.Gather{}, nil, s.in(3, 2), checked(s)))
			s.next()
			s.Store(v, s.Read(w))
		}, []end{verify, goOn}},
		{"an index that a step has verified for a larger table", func(s *sketch) {
			w, v := s.slot(ir.Params, ir.F32, 6, 2), s.slot(ir.Params, ir.F32, 6, 2)
			s.Store(w, s.Add(ir.Gather{}, nil, s.in(2, 2), checked(s)))
			s.next()
			s.Store(v, s.Read(w))
		}, []end{verify, verify, goOn}},
		{"labels that nobody verifies", func(s *sketch) {
			w, v := s.slot(ir.Params, ir.F32, 6), s.slot(ir.Params, ir.F32, 6)
			labels := s.Read(s.slot(ir.Input, ir.I32, 6))
			s.Store(w, s.Add(ir.CrossEntropy{}, nil, s.in(6, 3), labels, s.Const(1, 3)))
			s.next()
			s.Store(v, s.Read(w))
		}, []end{verify, goOn}},
		{"a collective", func(s *sketch) {
			s.out(s.Add(ir.AllReduceSum{}, nil, s.in(4)))
			s.out(s.Map(ir.Exp, s.in(4)))
		}, []end{exchange, goOn}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSketch(t)
			c.draw(s)
			if p := s.plan(); !slices.Equal(ends(p), c.want) {
				t.Errorf("got %v, want %v\n%s\n%s", ends(p), c.want, p.program, p)
			}
		})
	}
}

// Where memory allows it, a thread takes four elements at once, and else one.
func TestVectors(t *testing.T) {
	for _, c := range []struct {
		name string
		draw func(s *sketch) *ir.Value
		want string
	}{
		{"dense", func(s *sketch) *ir.Value { return s.Map(ir.Exp, s.in(33, 7)) }, "loadv<4>(a0 + (i))"},
		{"a row repeated", func(s *sketch) *ir.Value { return s.Plus(s.in(5, 8), s.in(8)) }, "loadv<4>(a1 + (i % 8))"},
		{"a column repeated", func(s *sketch) *ir.Value { return s.Plus(s.in(5, 8), s.in(5, 1)) }, "load<4, 0>(a1 + (i / 8))"},
		{"a row of odd length", func(s *sketch) *ir.Value { return s.Plus(s.in(5, 7), s.in(7)) }, "loadv<1>(a1 + (i % 7))"},
		{"a transpose", func(s *sketch) *ir.Value { return s.Plus(s.in(5, 8), s.T(s.in(8, 5))) }, "load<4, 5>(a1 + (i % 8 * 5 + i / 8))"},
		{"a slice that is uneven", func(s *sketch) *ir.Value { return s.Map(ir.Exp, s.SliceAxis(s.in(4, 12), 1, 3, 11)) }, "load<4, 1>(a0 + (i % 8 + i / 8 * 12))"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSketch(t)
			s.out(c.draw(s))
			if text := s.plan().texts[0]; !strings.Contains(text, c.want) {
				t.Errorf("no %s in\n%s", c.want, text)
			}
		})
	}
}

func TestControl(t *testing.T) {
	s := newSketch(t)
	best := s.Add(ir.ArgMax{Axis: 1}, nil, s.in(6, 9))
	for _, what := range []string{"token", "word"} {
		s.out(s.Add(ir.CheckIndex{Bound: 3, What: what}, nil, best))
	}
	p := s.plan()
	block := make([]byte, p.controlBytes())
	rt := ir.Runtime{Seed: 5, Step: 6, FirstSample: 70}
	p.write(block, &rt)
	if err := p.verify(block); err != nil {
		t.Errorf("at the start: %v", err)
	}
	// The second step noted value -2 at index 7.
	copy(block[runtimeBytes+guardBytes:], []byte{0xfe, 0xff, 0xff, 0xff, 7, 0, 0, 0})
	var got *ir.IndexError
	want := ir.IndexError{What: p.guards[1].check.What, Index: 7, Value: -2, Bound: 3}
	if err := p.verify(block); !errors.As(err, &got) || *got != want || !strings.Contains(err.Error(), "(CheckIndex)") {
		t.Errorf("got %v, want %v", err, &want)
	}
}

func TestUnknownStep(t *testing.T) {
	p := &ir.Program{Name: "odd", Steps: []ir.Step{{Op: ir.Reshape{}, Name: "flat"}}}
	if _, err := newPlan(p, none{}, false); !errors.Is(err, errOp) || err.Error() != "step 0 flat (Reshape): no such step on a card" {
		t.Errorf("got %v", err)
	}
}

func TestLiteral(t *testing.T) {
	for x, want := range map[float32]string{0: "0x0p+00f", 0.5: "0x1p-01f", -3: "(-0x1.8p+01f)", 1e-45: "0x1p-149f"} {
		if got := literal(x); got != want {
			t.Errorf("%v: got %s, want %s", x, got, want)
		}
	}
	if got := literal(start(ir.MaxOf)); got != "__int_as_float(0xff800000)" {
		t.Errorf("-Inf: got %s", got)
	}
}
