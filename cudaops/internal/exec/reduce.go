package exec

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

// reduce makes a reduction of a loop's elements one kernel, or two where there are few results of many elements.
func (b *planner) reduce(s *ir.Step, op ir.Reduce) error {
	if err := contiguous(s.Out[0]); err != nil {
		return err
	}
	r := &reduction{planner: b, op: op, loop: s.Loop, in: s.In, out: at(s.Out[0]), split: true}
	return r.plan()
}

// storedSum carries out a loop, and the reduction of what that stores, in one pass over memory.
func (b *planner) storedSum(loop, sum *ir.Step) error {
	if err := contiguous(loop.Out[0], sum.Out[0]); err != nil {
		return err
	}
	r := &reduction{
		planner: b, op: sum.Op.(ir.Reduce), loop: loop.Loop, in: loop.In, stored: &loop.Out[0], out: at(sum.Out[0]), split: true,
	}
	return r.plan()
}

// reduction is the planning of one kernel.
type reduction struct {
	*planner
	op     ir.Reduce
	loop   *ir.Loop
	in     []ir.Operand
	stored *ir.Operand // where the elements go, too, if they do; one of in may lie there
	out    place
	split  bool // whether it may have parts

	kept, reduced []int // dimensions
	nk, nr        int   // results, and elements of each
}

// start is what an empty reduction gives.
func start(f ir.Reduction) float32 {
	switch f {
	case ir.MaxOf:
		return float32(math.Inf(-1))
	case ir.MinOf:
		return float32(math.Inf(1))
	}
	return 0
}

func (r *reduction) plan() error {
	shape := r.loop.Shape
	for d := range shape {
		if slices.Contains(r.op.Axes, d) {
			r.reduced = append(r.reduced, d)
		} else {
			r.kept = append(r.kept, d)
		}
	}
	r.nk, r.nr = ir.Shape(pick(shape, r.kept)).Size(), ir.Shape(pick(shape, r.reduced)).Size()
	switch {
	case r.nk == 0:
		return nil
	case r.nr == 0:
		r.add(fill{r.out, r.nk, math.Float32bits(start(r.op.Fn))})
		return nil
	case r.byColumns():
		r.columns()
	default:
		r.rows()
	}
	return nil
}

// byColumns reports whether neighbours among the kept dimensions lie together in most of what is read.
func (r *reduction) byColumns() bool {
	votes := 0
	for _, o := range r.in {
		size, near := 1, -1
		for d, n := range o.Shape {
			if n > 1 && o.Strides[d] != 0 {
				size *= n
				if o.Strides[d] == 1 {
					near = d
				}
			}
		}
		switch {
		case near < 0:
		case slices.Contains(r.kept, near):
			votes += size
		default:
			votes -= size
		}
	}
	if votes != 0 {
		return votes > 0
	}
	for d := len(r.loop.Shape) - 1; d >= 0; d-- {
		if r.loop.Shape[d] > 1 {
			return slices.Contains(r.kept, d)
		}
	}
	return false
}

// along is the addresses of an operand along both kinds of dimension.
func (r *reduction) along(strides []int) (k, e address) {
	shape := r.loop.Shape
	return newAddress(pick(shape, r.kept), pick(strides, r.kept)), newAddress(pick(shape, r.reduced), pick(strides, r.reduced))
}

// writer looks at the loop for a thread that takes neighbours in k, or else in r; v is how many it may take.
func (r *reduction) writer(neighboursInK bool) (w *loopWriter, v int) {
	v = lanes
	locate := func(o ir.Operand) source {
		k, e := r.along(o.Strides)
		inner, outer := e, k
		if neighboursInK {
			inner, outer = k, e
		}
		stride, ok := inner.lane()
		if !ok {
			v = 1
		}
		where := k.in("k") + " + " + e.in("r")
		switch {
		case len(k) == 0:
			where = e.in("r")
		case len(e) == 0:
			where = k.in("k")
		}
		even := at(o).even(o.DType.Size()) && inner.even() && multiples(outer)
		return source{where: where, uniform: len(k) == 0 && len(e) == 0, stride: stride, even: even}
	}
	w = newLoopWriter(r.loop, r.in, []int{len(r.loop.Code) - 1}, locate)
	if r.stored != nil {
		to := locate(*r.stored)
		if to.stride != 1 || !to.even {
			v = 1
		}
		w.store(*r.stored, to.where)
	}
	if neighboursInK && r.nk%lanes != 0 || !neighboursInK && r.nr%lanes != 0 {
		v = 1
	}
	return w, v
}

// multiples reports whether all that an address gives are multiples of 4.
func multiples(a address) bool {
	for _, t := range a {
		if t.mul%lanes != 0 {
			return false
		}
	}
	return true
}

// A second kernel is worth it where less than enough blocks would be busy and each thread would go round more than often.
const (
	enough = 528
	often  = 16
)

// parts is into how many parts to cut each result's elements, where a thread would go round that often.
func (r *reduction) parts(blocks, rounds int) int {
	if !r.split || blocks >= enough || rounds <= often {
		return 1
	}
	return max(1, min((enough+blocks-1)/blocks, rounds/(often/2)))
}

func (r *reduction) rows() {
	w, v := r.writer(false)
	loads := r.nr / v
	group := min(32, ceilPow2(loads))
	if loads >= 1024 || loads >= threads && r.nk < resident {
		group = threads
	}
	s := r.parts(blocks(r.nk, threads/group), loads/group)
	k := r.kernelOf("rows", w, v, group, s)
	r.finish(w, k, launch{blocks: blocks(r.nk*s, threads/group)}, s, ir.Of(r.nk, s), 1)
}

func (r *reduction) columns() {
	w, v := r.writer(true)
	side := min(32, ceilPow2((r.nk+v-1)/v))
	across := blocks(r.nk, side*v)
	s := r.parts(across, r.nr/(threads/side))
	k := r.kernelOf("columns", w, v, side, s)
	r.finish(w, k, launch{blocks: across, planes: s}, s, ir.Of(s, r.nk), 0)
}

// kernelOf writes the kernel that calls a function of reduce.cuh.
func (r *reduction) kernelOf(function string, w *loopWriter, v, width, s int) int {
	sizes := []int{r.nk * max(r.nr, s)}
	for _, o := range r.in {
		sizes = append(sizes, reach(o.Shape, o.Strides))
	}
	index := indexType(sizes...)
	var c strings.Builder
	c.WriteString("struct @Loop {\n")
	var names []string
	for _, p := range w.params {
		fmt.Fprintf(&c, "    %s;\n", p)
		names = append(names, strings.TrimLeft(p[strings.LastIndex(p, " ")+1:], "*"))
	}
	fmt.Fprintf(&c, "    template <int V> __device__ __forceinline__ Vec<V> at(%s k, %[1]s r) const {\n", index)
	w.once(&c, "        ")
	w.body(&c, "        ", v, []int{len(r.loop.Code) - 1}, []string{"w"})
	fmt.Fprintf(&c, "        return w;\n    }\n    static const bool stores = %t;\n", w.stored != "")
	fmt.Fprintf(&c, "    template <int V> __device__ __forceinline__ void store(%s k, %[1]s r, const Vec<V> &w) const {%s}\n};\n", index, w.stored)
	name := map[ir.Reduction]string{ir.Sum: "Sum", ir.MaxOf: "MaxOf", ir.MinOf: "MinOf"}[r.op.Fn]
	fmt.Fprintf(&c, "%s    const @Loop f = {%s};\n    %s<%s, %d, %d, %s, %d, %d, %d>(f, out);\n}\n", waiting(append(slices.Clone(w.params), "float *out")...),
		strings.Join(names, ", "), function, name, width, v, index, r.nk, r.nr, s)
	r.random = r.random || w.random
	return r.kernel(r.op.Fn.String(), c.String(), append(loopUses(w), "reduce")...)
}

// finish launches the kernel, and a second one for its parts, which lie as in shape and are to be reduced along axis.
func (r *reduction) finish(w *loopWriter, kernel int, l launch, s int, shape ir.Shape, axis int) {
	l.kernel = kernel
	if s == 1 {
		l.args = append(w.args, r.out)
		r.add(l)
		return
	}
	parts := r.temporary(shape.Size())
	l.args = append(w.args, parts)
	r.add(l)
	second := &reduction{ // without parts of its own
		planner: r.planner, op: ir.Reduce{Fn: r.op.Fn, Axes: []int{axis}}, out: r.out,
		loop: &ir.Loop{Shape: shape, Code: []ir.Instr{{Kind: ir.Load}}},
		in:   []ir.Operand{{Region: parts.base, Offset: parts.bytes / wordBytes, Shape: shape, Strides: shape.Strides()}},
	}
	if err := r.only([]span{parts.span(shape.Size()*wordBytes, false), r.out.span(r.nk*wordBytes, true)}, second.plan); err != nil {
		panic(err) // it has nothing to fail at
	}
}

// ceilPow2 is the least power of two that is at least n.
func ceilPow2(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}
