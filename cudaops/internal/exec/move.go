package exec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

func (b *planner) copy(s *ir.Step) error {
	in, out := s.In[0], s.Out[0]
	if in.DType != out.DType || !in.Shape.Equal(out.Shape) {
		return fmt.Errorf("copies %v to %v", in, out)
	}
	return b.move(in.Shape, at(in), in.Strides, at(out), out.Strides)
}

// concat copies every argument to its stretch of the result.
func (b *planner) concat(s *ir.Step, op ir.Concat) error {
	out, before := s.Out[0], 0
	for _, in := range s.In {
		if err := b.move(in.Shape, at(in), in.Strides, at(out).plus(before*out.Strides[op.Axis]*out.DType.Size()), out.Strides); err != nil {
			return err
		}
		before += in.Shape[op.Axis]
	}
	return nil
}

// unslice clears the result and copies the argument to every Step-th place.
func (b *planner) unslice(s *ir.Step, op ir.Unslice) error {
	in, out := s.In[0], s.Out[0]
	if err := contiguous(out); err != nil {
		return err
	}
	if n := out.Shape.Size(); n > 0 {
		b.add(zero{at(out), n * out.DType.Size()})
	}
	to, strides := at(out), slices.Clone(out.Strides)
	for d := range strides {
		to = to.plus(op.Start[d] * strides[d] * out.DType.Size())
		strides[d] *= op.Step[d]
	}
	return b.move(in.Shape, at(in), in.Strides, to, strides)
}

// move copies elements from where they lie to where they go.
func (b *planner) move(shape ir.Shape, from place, fromStrides []int, to place, toStrides []int) error {
	n := shape.Size()
	if n == 0 {
		return nil
	}
	if dense(shape, fromStrides) && dense(shape, toStrides) {
		b.add(transfer{to, from, n * wordBytes})
		return nil
	}
	ext, strides := ir.Squeeze(shape, fromStrides, toStrides)
	if b.transpose(ext, from, strides[0], to, strides[1]) {
		return nil
	}
	v := 1
	src, dst := newAddress(ext, strides[0]), newAddress(ext, strides[1])
	wide := func(p place, a address) bool {
		stride, ok := a.lane()
		return ok && stride == 1 && a.even() && p.even(wordBytes)
	}
	if n%lanes == 0 && wide(from, src) && wide(to, dst) {
		v = lanes
	}
	var c strings.Builder
	fmt.Fprintf(&c, "%s {\n    const %s i = ((%[2]s)blockIdx.x * %d + threadIdx.x) * %d;\n", entry("const u32 *from", "u32 *to"),
		indexType(n+threads*lanes, reach(ext, strides[0]), reach(ext, strides[1])), threads, v)
	fmt.Fprintf(&c, "    if (i < %d) movev<%d>(to + (%s), from + (%s));\n}\n", n, v, dst.in("i"), src.in("i"))
	b.launch(b.kernel("copy", c.String(), "move"), blocks(n/v, threads), from, to)
	return nil
}

// maxPlanes is the most that a grid has in its second extent.
const maxPlanes = 65535

// transpose copies by tiles where one dimension is dense to read and another to write; it reports whether that is so.
func (b *planner) transpose(ext []int, from place, fromStrides []int, to place, toStrides []int) bool {
	const worth = 8 // a tile that is mostly empty is not
	pa, pb := slices.Index(fromStrides, 1), slices.Index(toStrides, 1)
	if pa < 0 || pb < 0 || pa == pb || ext[pa] < worth || ext[pb] < worth || fromStrides[pb] == 0 {
		return false
	}
	var rest []int
	for d := range ext {
		if d != pa && d != pb {
			rest = append(rest, d)
		}
	}
	planes := ir.Shape(pick(ext, rest)).Size()
	if planes > maxPlanes {
		return false
	}
	index := indexType(reach(ext, fromStrides), reach(ext, toStrides), ir.Shape(ext).Size())
	var c strings.Builder
	fmt.Fprintf(&c, "struct @Planes {\n")
	for i, strides := range [][]int{fromStrides, toStrides} {
		fmt.Fprintf(&c, "    __device__ __forceinline__ %s %s(%[1]s z) const { return %[3]s; }\n", index, [...]string{"from", "to"}[i],
			newAddress(pick(ext, rest), pick(strides, rest)).in("z"))
	}
	fmt.Fprintf(&c, "};\n%s {\n    transpose<%s, %d, %d, %d, %d>(@Planes(), to, from);\n}\n", entry("const u32 *from", "u32 *to"), index,
		ext[pa], ext[pb], fromStrides[pb], toStrides[pa])
	b.add(launch{
		kernel: b.kernel("transpose", c.String(), "move"), args: []place{from, to},
		blocks: blocks(ext[pa], 32) * blocks(ext[pb], 32), planes: planes,
	})
	return true
}
