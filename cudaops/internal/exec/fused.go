package exec

import (
	"fmt"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

// resident is about how many blocks fill a large card twice: a loop starts no more, so that what is the same for all elements is computed
// seldom. It is a constant so that sources, and the order of sums, are the same for every card.
const resident = 2048

// fused makes a loop a kernel. A thread takes four elements at once where the results and the operands lie so that it can.
func (b *planner) fused(s *ir.Step) error {
	n := s.Loop.Shape.Size()
	if n == 0 {
		return nil
	}
	if err := contiguous(s.Out...); err != nil {
		return err
	}
	v, sizes, block, most := lanes, []int{n}, threads, resident
	if b.beside {
		v, block, most = 2*lanes, besideThreads, besideBlocks
	}
	restrict := "__restrict__ "
	for _, in := range s.In {
		sizes = append(sizes, reach(in.Shape, in.Strides))
		for _, out := range s.Out {
			if extent(out).overlaps(extent(in)) {
				restrict = "" // in place
			}
		}
	}
	for _, out := range s.Out {
		if !at(out).even(out.DType.Size()) {
			v = 1
		}
	}
	fits := true
	w := newLoopWriter(s.Loop, s.In, s.Results, func(o ir.Operand) source {
		a := newAddress(s.Loop.Shape, o.Strides)
		stride, ok := a.lane()
		even := at(o).even(o.DType.Size()) && a.even()
		fits = fits && ok && (!b.beside || even || len(a) == 0)
		return source{where: a.in("i"), uniform: len(a) == 0, stride: stride, even: even}
	})
	if !fits || n < v {
		v = 1
	}
	w.spread = b.beside && v > 1
	params, args := w.params, w.args
	var out []string
	for k, o := range s.Out {
		params = append(params, fmt.Sprintf("%s *%so%d", ctype(o.DType), restrict, k))
		args = append(args, at(o))
		out = append(out, fmt.Sprintf("w%d", k))
	}
	b.random = b.random || w.random

	var c strings.Builder
	index := indexType(sizes...)
	c.WriteString(waitingOf(block, params...))
	w.once(&c, "    ")
	elements := func(v int) {
		w.body(&c, "        ", v, s.Results, out)
		for k := range s.Out {
			fmt.Fprintf(&c, "        storev<%s>(o%d + i, w%d);\n", w.width(v), k, k)
		}
		c.WriteString("    }\n")
	}
	if pixel := squares(s, v); pixel > 0 {
		w.squares = true
		fmt.Fprintf(&c, "    for (%s u = (%[1]s)blockIdx.x * %d + threadIdx.x; u < %d; u += (%[1]s)gridDim.x * %[2]d) {\n", index, threads, n/(lanes*lanes))
		fmt.Fprintf(&c, "        %s i = u / %d * %d + u %% %[2]d * %[4]d;\n", index, pixel/lanes, pixel*lanes, lanes)
		w.square(&c, "        ")
		fmt.Fprintf(&c, "#pragma unroll\n        for (int p = 0; p < %d; p++, i += %d) {\n", lanes, pixel)
		elements(v)
		c.WriteString("    }\n}\n")
		b.launch(b.kernel("fused", c.String(), loopUses(w)...), min(blocks(n/(lanes*lanes), threads), resident), args...)
		return nil
	}
	first, whole := fmt.Sprintf("((%s)blockIdx.x * %d + threadIdx.x) * %d", index, block, v), v
	if w.spread { // a warp's elements lie together
		whole = warpThreads * v
		first = fmt.Sprintf("((%s)blockIdx.x * %d + threadIdx.x / %d) * %d + threadIdx.x %% %[3]d * %[5]d", index, block/warpThreads, warpThreads, whole, lanes)
	}
	fmt.Fprintf(&c, "    for (%s i = %s; i < %d; i += (%[1]s)gridDim.x * %[4]d) {\n", index, first, n/whole*whole, block*v)
	elements(v)
	if rest := n % whole; rest > 0 {
		fmt.Fprintf(&c, "    if (blockIdx.x == 0 && threadIdx.x < %d) {\n        const %s i = %d + threadIdx.x;\n", rest, index, n-rest)
		elements(1)
	}
	c.WriteString("}\n")
	k := b.kernel("fused", c.String(), loopUses(w)...)
	b.add(launch{kernel: k, blocks: min(blocks(n/v, block), most), threads: block, args: args})
	return nil
}

// squares is how many channels a pixel has where a loop over images with channels last makes its random numbers by squares, and else 0.
func squares(s *ir.Step, v int) int {
	shape := s.Loop.Shape
	if v != lanes || len(shape) != 4 || shape[2]%lanes != 0 || shape[3]%lanes != 0 {
		return 0
	}
	random := false
	for _, c := range s.Loop.Code {
		if c.Kind == ir.Random {
			if !c.Rand.ChannelsLast {
				return 0
			}
			random = true
		}
	}
	if !random {
		return 0
	}
	return shape[3]
}

func loopUses(w *loopWriter) []string {
	if w.random {
		return []string{"random"}
	}
	return nil
}

// blocks is how many blocks of size each n threads are, at least one.
func blocks(n, size int) int { return max(1, (n+size-1)/size) }
