package exec

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

// source is where a register of a loop comes from outside: memory, an index, or the random generator.
type source struct {
	where   string // C++: the offset of the element, in elements; for an index its value, for a random number its place in the stream
	uniform bool   // the same for every element
	stride  int    // from lane to lane
	even    bool   // four lanes may be read as one
}

// loopWriter writes an ir.Loop as C++.
type loopWriter struct {
	l       *ir.Loop
	in      []ir.Operand
	sources []source // by position, of Load, Index and Random
	used    []bool
	uniform []bool
	pointer []int // by operand: the parameter's number
	params  []string
	args    []place
	random  bool
	spread  bool   // what a thread takes is fours that lie a warp's apart
	stored  string // C++: stores what the loop makes of k and r
	squares bool   // random numbers have been made by squares, of which body takes column p
}

// newLoopWriter looks at a loop whose results are the given registers. locate says where the element of a strided operand, or of
// something that has strides like one, is.
func newLoopWriter(l *ir.Loop, in []ir.Operand, results []int, locate func(o ir.Operand) source) *loopWriter {
	n := len(l.Code)
	w := &loopWriter{l: l, in: in, sources: make([]source, n), used: make([]bool, n), uniform: make([]bool, n), pointer: make([]int, len(in))}
	for _, r := range results {
		w.used[r] = true
	}
	for i := n - 1; i >= 0; i-- {
		if in := l.Code[i]; w.used[i] && in.Kind == ir.Apply {
			for _, a := range in.A[:in.Fn.Arity()] {
				w.used[a] = true
			}
		}
	}
	for k := range w.pointer {
		w.pointer[k] = -1
	}
	for i, c := range l.Code {
		if !w.used[i] {
			continue
		}
		switch c.Kind {
		case ir.Load:
			o := in[c.In]
			w.sources[i] = locate(o)
			if w.pointer[c.In] < 0 {
				w.pointer[c.In] = len(w.args)
				w.params = append(w.params, fmt.Sprintf("const %s *a%d", ctype(o.DType), len(w.args)))
				w.args = append(w.args, at(o))
			}
		case ir.Index:
			strides := make([]int, len(l.Shape))
			strides[c.Axis] = 1
			w.sources[i] = locate(ir.Operand{Strides: strides})
		case ir.Random:
			w.sources[i] = locate(ir.Operand{Strides: c.Rand.Numbering(l.Shape)})
			w.random = true
		case ir.Apply:
			w.uniform[i] = true
			for _, a := range c.A[:c.Fn.Arity()] {
				w.uniform[i] = w.uniform[i] && w.uniform[a]
			}
			continue
		}
		w.uniform[i] = c.Kind == ir.Imm || c.Kind != ir.Random && w.sources[i].uniform
	}
	if w.random {
		w.params = append(w.params, "const Runtime *rt")
		w.args = append(w.args, place{control, 0})
	}
	return w
}

// store lets the loop of a reduction store its elements, too.
func (w *loopWriter) store(o ir.Operand, where string) {
	w.params, w.args = append(w.params, writes(o, "o")), append(w.args, at(o))
	w.stored = fmt.Sprintf(" storev<V>(o + (%s), w); ", where)
}

func ctype(t ir.DType) string {
	return [...]string{ir.F32: "float", ir.I32: "int", ir.BF16: "bf16", ir.F16: "f16"}[t]
}

// once writes the registers that are the same for every element.
func (w *loopWriter) once(b *strings.Builder, indent string) {
	for i, c := range w.l.Code {
		if !w.used[i] || !w.uniform[i] {
			continue
		}
		switch c.Kind {
		case ir.Load:
			fmt.Fprintf(b, "%sconst float r%d = (float)*a%d;\n", indent, i, w.pointer[c.In])
		case ir.Index:
			fmt.Fprintf(b, "%sconst float r%d = 0.f;\n", indent, i)
		case ir.Apply:
			fmt.Fprintf(b, "%sconst float r%d = %s;\n", indent, i, w.apply(c))
		}
	}
}

// body writes the code for v elements, which leaves register results[k] in the Vec that is called out[k].
func (w *loopWriter) body(b *strings.Builder, indent string, v int, results []int, out []string) {
	for i, c := range w.l.Code {
		if w.used[i] && !w.uniform[i] && c.Kind != ir.Apply {
			fmt.Fprintf(b, "%sconst Vec<%d> r%d = %s;\n", indent, v, i, w.source(i, c, v))
		}
	}
	fmt.Fprintf(b, "%sVec<%d> %s;\n", indent, v, strings.Join(out, ", "))
	if v > 1 {
		b.WriteString("#pragma unroll\n")
	}
	fmt.Fprintf(b, "%sfor (int j = 0; j < %d; j++) {\n", indent, v)
	for i, c := range w.l.Code {
		if w.used[i] && !w.uniform[i] && c.Kind == ir.Apply {
			fmt.Fprintf(b, "%s    const float r%d = %s;\n", indent, i, w.apply(c))
		}
	}
	for k, r := range results {
		fmt.Fprintf(b, "%s    %s.x[j] = %s;\n", indent, out[k], w.ref(r))
	}
	fmt.Fprintf(b, "%s}\n", indent)
}

// source is the expression that makes a register from outside.
func (w *loopWriter) source(i int, c ir.Instr, v int) string {
	s := w.sources[i]
	switch c.Kind {
	case ir.Index:
		return fmt.Sprintf("index<%d, %d>(%s)", v, s.stride, s.where)
	case ir.Random:
		if w.squares {
			return fmt.Sprintf("q%d.column(p)", i)
		}
		return fmt.Sprintf("uniform<%d, %d>(rt, %dull, %dull, %s)", v, s.stride, c.Rand.Stream, w.perSample(), s.where)
	}
	p := fmt.Sprintf("a%d + (%s)", w.pointer[c.In], s.where)
	if v == 1 || s.stride == 1 && s.even {
		return fmt.Sprintf("loadv<%s>(%s)", w.width(v), p)
	}
	return fmt.Sprintf("load<%d, %d>(%s)", v, s.stride, p)
}

// width is the template arguments of loadv and storev for v elements.
func (w *loopWriter) width(v int) string {
	if v > 1 && w.spread {
		return fmt.Sprintf("%d, %d", v, warpThreads*lanes)
	}
	return strconv.Itoa(v)
}

// perSample is how many numbers of a stream a sample has.
func (w *loopWriter) perSample() int {
	n := w.l.Shape.Size()
	if len(w.l.Shape) > 0 {
		n /= max(1, w.l.Shape[0])
	}
	return n
}

// square writes the random numbers of four pixels and four channels, from element i on, for images with channels last. Four pixels of a row follow
// each other in the stream, which gives four numbers at a time; channels do not, and to take one of the four each time would take four times as long.
func (w *loopWriter) square(b *strings.Builder, indent string) {
	for i, c := range w.l.Code {
		if w.used[i] && c.Kind == ir.Random {
			fmt.Fprintf(b, "%sconst Square q%d = uniforms<%d>(rt, %dull, %dull, %s);\n", indent, i, w.sources[i].stride, c.Rand.Stream, w.perSample(), w.sources[i].where)
		}
	}
}

// ref is a register, as the code for one lane has it.
func (w *loopWriter) ref(i int) string {
	c := w.l.Code[i]
	switch {
	case c.Kind == ir.Imm:
		return literal(c.X)
	case w.uniform[i] || c.Kind == ir.Apply:
		return fmt.Sprintf("r%d", i)
	}
	return fmt.Sprintf("r%d.x[j]", i)
}

// literal is a number in C++, to the bit.
func literal(x float32) string {
	if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprintf("__int_as_float(0x%08x)", math.Float32bits(x))
	}
	s := strconv.FormatFloat(float64(x), 'x', -1, 32) + "f"
	if math.Signbit(float64(x)) {
		return "(" + s + ")"
	}
	return s
}

// formulas are the scalar functions in C++, with % for the arguments in order.
var formulas = [...]string{
	ir.Neg: "-%", ir.Abs: "fabsf(%)", ir.Sign: "sign(%)", ir.Sqrt: "sqrtf(%)", ir.Rsqrt: "rsqrtf(%)", ir.Recip: "1.f / %", ir.Square: "square(%)",
	ir.Exp: "expf(%)", ir.Expm1: "expm1f(%)", ir.Log: "logf(%)", ir.Log1p: "log1pf(%)", ir.Sin: "sinf(%)", ir.Cos: "cosf(%)",
	ir.Tanh: "tanhf(%)", ir.Sigmoid: "sigmoid(%)", ir.Softplus: "softplus(%)", ir.Erf: "erff(%)", ir.Relu: "relu(%)",
	ir.Floor: "floorf(%)", ir.Ceil: "ceilf(%)", ir.Float: "%",
	ir.RoundBF16: "(float)bf16(%)", ir.RoundF16: "(float)f16(%)",
	ir.Add: "% + %", ir.Sub: "% - %", ir.Mul: "% * %", ir.Div: "% / %", ir.Max: "largest(%, %)", ir.Min: "smallest(%, %)", ir.Pow: "powf(%, %)",
	ir.Gt: "% > % ? 1.f : 0.f", ir.Ge: "% >= % ? 1.f : 0.f", ir.Lt: "% < % ? 1.f : 0.f", ir.Le: "% <= % ? 1.f : 0.f",
	ir.Eq: "% == % ? 1.f : 0.f", ir.Ne: "% != % ? 1.f : 0.f",
	ir.Where: "% != 0.f ? % : %",
}

func (w *loopWriter) apply(c ir.Instr) string {
	f := formulas[c.Fn]
	for _, a := range c.A[:c.Fn.Arity()] {
		f = strings.Replace(f, "%", w.ref(a), 1)
	}
	return f
}
