package cublas

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/tandem-train/tandem/internal/ir"
)

func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(algorithm{}); n != 64 {
		t.Errorf("an algorithm has %d bytes, not 64", n)
	}
	if n := unsafe.Sizeof(heuristic{}); n != 96 {
		t.Errorf("a heuristic's result has %d bytes, not 96", n)
	}
	var h heuristic
	for name, at := range map[string][2]uintptr{
		"workspace": {unsafe.Offsetof(h.workspace), 64}, "state": {unsafe.Offsetof(h.state), 72}, "waves": {unsafe.Offsetof(h.waves), 76},
	} {
		if at[0] != at[1] {
			t.Errorf("%s at %d, not %d", name, at[0], at[1])
		}
	}
}

func TestOperand(t *testing.T) {
	for _, c := range []struct {
		name       string
		m          Matrix
		rows, cols int
		want       layout
		ok         bool
	}{
		{"row-major", Matrix{Row: 5, Col: 1}, 3, 5, layout{rows: 5, cols: 3, ld: 5}, true},
		{"row-major with gaps", Matrix{Row: 8, Col: 1}, 3, 5, layout{rows: 5, cols: 3, ld: 8}, true},
		{"column-major", Matrix{Row: 1, Col: 3}, 3, 5, layout{rows: 3, cols: 5, ld: 3, transposed: true}, true},
		{"column-major with gaps", Matrix{Row: 1, Col: 4}, 3, 5, layout{rows: 3, cols: 5, ld: 4, transposed: true}, true},
		{"batched", Matrix{Row: 5, Col: 1, Batch: 15}, 3, 5, layout{rows: 5, cols: 3, ld: 5, batch: 15}, true},
		{"batched between rows", Matrix{Row: 20, Col: 1, Batch: 5}, 3, 5, layout{rows: 5, cols: 3, ld: 20, batch: 5}, true},
		{"one row", Matrix{Row: 0, Col: 1}, 1, 5, layout{rows: 5, cols: 1, ld: 5}, true},
		{"one row, spread", Matrix{Row: 7, Col: 3}, 1, 5, layout{rows: 1, cols: 5, ld: 3, transposed: true}, true},
		{"one column", Matrix{Row: 1, Col: 9}, 5, 1, layout{rows: 1, cols: 5, ld: 1}, true},
		{"one column, spread", Matrix{Row: 4, Col: 0}, 5, 1, layout{rows: 1, cols: 5, ld: 4}, true},
		{"one element", Matrix{}, 1, 1, layout{rows: 1, cols: 1, ld: 1}, true},
		{"spread both ways", Matrix{Row: 10, Col: 2}, 3, 5, layout{}, false},
		{"one row repeated", Matrix{Row: 0, Col: 1}, 3, 5, layout{}, false},
		{"one column repeated", Matrix{Row: 1, Col: 0}, 3, 5, layout{}, false},
		{"rows that overlap", Matrix{Row: 4, Col: 1}, 3, 5, layout{}, false},
		{"columns that overlap", Matrix{Row: 1, Col: 2}, 3, 5, layout{}, false},
		{"backwards", Matrix{Row: -5, Col: 1}, 3, 5, layout{}, false},
		{"batch backwards", Matrix{Row: 5, Col: 1, Batch: -15}, 3, 5, layout{}, false},
	} {
		got, ok := operand(c.m, c.rows, c.cols)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestLayoutErrorsNameTheOperand(t *testing.T) {
	good := Product{M: 3, N: 5, K: 7, A: Matrix{Row: 7, Col: 1}, B: Matrix{Row: 5, Col: 1}, C: Matrix{Row: 5, Col: 1}}
	if _, _, _, err := good.layouts(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[byte]func(p *Product){
		'A': func(p *Product) { p.A.Col = 2 },
		'B': func(p *Product) { p.B.Row = 0 },
		'C': func(p *Product) { p.C = Matrix{Row: 1, Col: 3} },
	} {
		bad := good
		change(&bad)
		_, _, _, err := bad.layouts()
		var e *LayoutError
		if !errors.As(err, &e) || !errors.Is(err, ErrLayout) || e.Operand != name {
			t.Errorf("%c: %v", name, err)
		}
	}
	batched := good
	batched.Batch = 2
	if _, _, _, err := batched.layouts(); !errors.Is(err, ErrLayout) {
		t.Errorf("results of a batch in one place: %v", err)
	}
}

func TestFold(t *testing.T) {
	shared := Product{Batch: 4, M: 3, N: 5, K: 7, A: Matrix{7, 1, 21}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 15}}
	got := shared.fold()
	if got.Batch != 1 || got.M != 12 || got.A != (Matrix{7, 1, 0}) || got.C != (Matrix{5, 1, 0}) {
		t.Errorf("one B: %+v", got)
	}
	for name, change := range map[string]func(p *Product){
		"several B":       func(p *Product) { p.B.Batch = 35 },
		"gaps in A":       func(p *Product) { p.A.Batch = 22 },
		"gaps in C":       func(p *Product) { p.C.Batch = 16 },
		"A transposed":    func(p *Product) { p.A = Matrix{1, 3, 21} },
		"sums by product": func(p *Product) { p.BiasGrad = SumA },
	} {
		p := shared
		change(&p)
		if got := p.fold(); got != p {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestEpilogue(t *testing.T) {
	for _, c := range []struct {
		p    Product
		want uint64
	}{
		{Product{}, 1}, {Product{Relu: true}, 2}, {Product{Bias: true}, 4}, {Product{Bias: true, Relu: true}, 6},
		{Product{BiasGrad: SumA}, 512}, {Product{BiasGrad: SumB}, 256},
	} {
		if got := c.p.epilogue(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.p, got, c.want)
		}
	}
}

func TestImpossibleProducts(t *testing.T) {
	for name, p := range map[string]Product{
		"no rows":       {N: 1, K: 1},
		"no sum":        {M: 1, N: 1},
		"batch":         {M: 1, N: 1, K: 1, Batch: -1},
		"whole numbers": {M: 1, N: 1, K: 1, In: ir.I32},
		"bf16 of f32":   {M: 1, N: 1, K: 1, Out: ir.BF16},
		"bf16 of f16":   {M: 1, N: 1, K: 1, In: ir.F16, Out: ir.BF16},
		"bias and sums": {M: 1, N: 1, K: 1, Bias: true, BiasGrad: SumB},
	} {
		if p.check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
