package exec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

func (b *planner) copy(s *ir.Step) error {
	in, out := s.In[0], s.Out[0]
	if !in.Shape.Equal(out.Shape) || (in.DType == ir.I32) != (out.DType == ir.I32) {
		return fmt.Errorf("copies %v to %v", in, out)
	}
	return b.move(in.Shape, lies(in), lies(out))
}

// strided is where elements lie, whatever their shape.
type strided struct {
	place
	strides []int
	dtype   ir.DType
}

func lies(o ir.Operand) strided { return strided{at(o), o.Strides, o.DType} }

// concat copies every argument to its stretch of the result.
func (b *planner) concat(s *ir.Step, op ir.Concat) error {
	out := s.Out[0]
	to := lies(out)
	for _, in := range s.In {
		if err := b.move(in.Shape, lies(in), to); err != nil {
			return err
		}
		to.place = to.plus(in.Shape[op.Axis] * out.Strides[op.Axis] * out.DType.Size())
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
	to := lies(out)
	to.strides = slices.Clone(out.Strides)
	for d := range to.strides {
		to.place = to.plus(op.Start[d] * to.strides[d] * out.DType.Size())
		to.strides[d] *= op.Step[d]
	}
	return b.move(in.Shape, lies(in), to)
}

// word is the C++ type in whose guise elements of a size are moved.
func word(size int) string { return fmt.Sprintf("u%d", 8*size) }

// movedAs are the C++ types by which elements go from one type to another.
func movedAs(from, to ir.DType) (f, t string) {
	if from == to {
		return word(from.Size()), word(to.Size())
	}
	return ctype(from), ctype(to)
}

// move copies elements from where they lie to where they go.
func (b *planner) move(shape ir.Shape, from, to strided) error {
	n, size := shape.Size(), to.dtype.Size()
	if n == 0 {
		return nil
	}
	same := from.dtype == to.dtype
	if same && dense(shape, from.strides) && dense(shape, to.strides) {
		b.add(transfer{to.place, from.place, n * size})
		return nil
	}
	ext, strides := ir.Squeeze(shape, from.strides, to.strides)
	if same && b.transpose(ext, size, from.place, strides[0], to.place, strides[1]) {
		return nil
	}
	v := 1
	src, dst := newAddress(ext, strides[0]), newAddress(ext, strides[1])
	wide := func(s strided, a address) bool {
		stride, ok := a.lane()
		return ok && stride == 1 && a.even() && s.even(s.dtype.Size())
	}
	if n%lanes == 0 && wide(from, src) && wide(to, dst) {
		v = lanes
	}
	f, t := movedAs(from.dtype, to.dtype)
	var c strings.Builder
	fmt.Fprintf(&c, "%s    const %s i = ((%[2]s)blockIdx.x * %d + threadIdx.x) * %d;\n", waiting("const "+f+" *from", t+" *to"),
		indexType(n+threads*lanes, reach(ext, strides[0]), reach(ext, strides[1])), threads, v)
	fmt.Fprintf(&c, "    if (i < %d) movev<%d>(to + (%s), from + (%s));\n}\n", n, v, dst.in("i"), src.in("i"))
	b.launch(b.kernel("copy", c.String(), "move"), blocks(n/v, threads), from.place, to.place)
	return nil
}

// maxPlanes is the most that a grid has in its second extent.
const maxPlanes = 65535

// transpose copies by tiles where one dimension is dense to read and another to write; it reports whether that is so.
func (b *planner) transpose(ext []int, size int, from place, fromStrides []int, to place, toStrides []int) bool {
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
	fmt.Fprintf(&c, "};\n%s    transpose<%s, %d, %d, %d, %d>(@Planes(), to, from);\n}\n", waiting("const "+word(size)+" *from", word(size)+" *to"), index,
		ext[pa], ext[pb], fromStrides[pb], toStrides[pa])
	b.add(launch{
		kernel: b.kernel("transpose", c.String(), "move"), args: []place{from, to},
		blocks: blocks(ext[pa], 32) * blocks(ext[pb], 32), planes: planes,
	})
	return true
}
