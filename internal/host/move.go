package host

import (
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// move copies a strided operand to another of the same shape.
type move struct {
	shared
	space
	tiling
	src, dst  view
	from, to  []int32
	transpose bool        // rows of src are columns of dst: go by squares
	walks     [][2]walker // one pair a thread
}

func (b *builder) copy(s *ir.Step) (step, error) {
	from, err := b.bits(s.In[0])
	if err != nil {
		return nil, err
	}
	to, err := b.bits(s.Out[0])
	if err != nil {
		return nil, err
	}
	if s.In[0].DType != s.Out[0].DType {
		return nil, fmt.Errorf("copies %v to %v", s.In[0], s.Out[0])
	}
	return b.move(s.In[0], s.Out[0].Strides, from, to)
}

// move makes a copy of from, which lies as o says, to to, which lies by strides.
func (b *builder) move(o ir.Operand, strides []int, from, to []int32) (*move, error) {
	if len(o.Strides) != len(strides) {
		return nil, fmt.Errorf("moves %v to %d dimensions", o, len(strides))
	}
	sp, views, err := merge(o.Shape, [][]int{o.Strides, strides})
	if err != nil {
		return nil, err
	}
	m := &move{space: sp, tiling: sp.tiling(), src: views[0], dst: views[1], from: from, to: to}
	if k := len(sp.ext); k > 1 && sp.size() > 0 {
		if m.src.strides[k-2] == 1 && m.dst.step == 1 && m.src.step != 1 && min(sp.ext[k-1], sp.ext[k-2]) >= square {
			m.transpose = true
			m.count = sp.rows / sp.ext[k-2] * ((sp.ext[k-2] + square - 1) / square)
		}
	}
	m.shared = shared{b.cut(m.count, sp.size()*4), m.tiles}
	m.walks = make([][2]walker, b.threads)
	return m, nil
}

// square is the side of the blocks that a transposition goes by, so that the cache lines it reads serve all their columns.
const square = 16

func (s *move) tiles(worker, part int) {
	w := &s.walks[worker]
	lo, hi := share(s.count, part, s.parts)
	for i := lo; i < hi; i++ {
		if s.transpose {
			s.turn(i)
			continue
		}
		t := s.tile(&s.space, i)
		w[0].start(&s.src, s.ext, t.row)
		w[1].start(&s.dst, s.ext, t.row)
		for range t.rows {
			s.row(w[1].off+t.col*s.dst.step, w[0].off+t.col*s.src.step, t.cols)
			w[0].next()
			w[1].next()
		}
	}
}

func (s *move) row(to, from, n int) {
	if s.dst.step == 1 && s.src.step == 1 {
		copy(s.to[to:to+n], s.from[from:from+n])
		return
	}
	for range n {
		s.to[to] = s.from[from]
		to += s.dst.step
		from += s.src.step
	}
}

// turn does block i of square rows.
func (s *move) turn(i int) {
	k := len(s.ext)
	high := s.ext[k-2]
	blocks := (high + square - 1) / square
	r := i / blocks * high
	to, from := s.dst.offset(s.ext, r), s.src.offset(s.ext, r)
	first := i % blocks * square
	last := min(first+square, high)
	for c := 0; c < s.cols; c += square {
		n := min(square, s.cols-c)
		for j := first; j < last; j++ {
			at := from + j + c*s.src.step
			d := s.to[to+j*s.dst.strides[k-2]+c:][:n]
			for x := range d {
				d[x] = s.from[at]
				at += s.src.step
			}
		}
	}
}

// sequence is several steps as one.
type sequence []step

func (s sequence) run(e *Exec) error {
	for _, t := range s {
		if err := t.run(e); err != nil {
			return err
		}
	}
	return nil
}

// concat copies every argument to its stretch of the result.
func (b *builder) concat(s *ir.Step, op ir.Concat) (step, error) {
	out := s.Out[0]
	to, err := b.bits(out)
	if err != nil {
		return nil, err
	}
	var seq sequence
	at := 0
	for _, in := range s.In {
		from, err := b.bits(in)
		if err != nil {
			return nil, err
		}
		if n := in.Shape.Size(); n > 0 {
			m, err := b.move(in, out.Strides, from, to[at*out.Strides[op.Axis]:])
			if err != nil {
				return nil, err
			}
			seq = append(seq, m)
		}
		at += in.Shape[op.Axis]
	}
	return seq, nil
}

// unslice clears the result and copies the argument to every Step-th place.
func (b *builder) unslice(s *ir.Step, op ir.Unslice) (step, error) {
	in, out := s.In[0], s.Out[0]
	from, err := b.bits(in)
	if err != nil {
		return nil, err
	}
	to, err := b.contiguousBits(out)
	if err != nil {
		return nil, err
	}
	zero := b.rowwise(len(to), len(to), 0, func(lo, hi int, _ []float32) { clear(to[lo:hi]) })
	if in.Shape.Size() == 0 {
		return zero, nil
	}
	at, strides := 0, slices.Clone(out.Strides)
	for d := range strides {
		at += op.Start[d] * strides[d]
		strides[d] *= op.Step[d]
	}
	m, err := b.move(in, strides, from, to[at:])
	if err != nil {
		return nil, err
	}
	return sequence{zero, m}, nil
}
