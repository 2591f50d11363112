package host

import (
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// checkIndex passes indices on and fails on the first that is out of range.
type checkIndex struct {
	ir.CheckIndex
	dst, src []int32
}

func (b *builder) checkIndex(s *ir.Step, op ir.CheckIndex) (step, error) {
	src, err := b.contiguousInts(s.In[0])
	if err != nil {
		return nil, err
	}
	dst, err := b.contiguousInts(s.Out[0])
	if err != nil {
		return nil, err
	}
	return &checkIndex{op, dst, src}, nil
}

func (s *checkIndex) run(*Exec) error {
	copy(s.dst, s.src)
	return s.Verify(s.src)
}

// indexed is a step that addresses rows by indices. They are checked on the way, so that no index reaches outside of memory even
// where a program has no CheckIndex.
type indexed struct {
	*rowwise
	ir.CheckIndex
	indices []int32
}

func (s *indexed) run(e *Exec) error {
	if err := s.Verify(s.indices); err != nil {
		return err
	}
	return s.rowwise.run(e)
}

// noIgnore is no int32, so that no index is let through.
const noIgnore = math.MinInt

func (b *builder) gather(s *ir.Step) (step, error) {
	table, out := s.In[0], s.Out[0]
	indices, err := b.contiguousInts(s.In[1])
	if err != nil {
		return nil, err
	}
	src, err := b.contiguousBits(table)
	if err != nil {
		return nil, err
	}
	dst, err := b.contiguousBits(out)
	if err != nil {
		return nil, err
	}
	width := table.Shape[1:].Size()
	do := b.rowwise(len(indices), len(dst), 0, func(lo, hi int, _ []float32) {
		for i := lo; i < hi; i++ {
			at := int(indices[i]) * width
			copy(dst[i*width:(i+1)*width], src[at:at+width])
		}
	})
	return &indexed{do, ir.CheckIndex{Bound: table.Shape[0], Ignore: noIgnore, What: "row"}, indices}, nil
}

// scatterAdd gives every thread a range of the result's rows, for which it goes through all indices in order: each row's sum has one
// order, whatever the threads.
func (b *builder) scatterAdd(s *ir.Step, op ir.ScatterAdd) (step, error) {
	indices, err := b.contiguousInts(s.In[0])
	if err != nil {
		return nil, err
	}
	m, err := b.all(s.In[1], s.Out[0])
	if err != nil {
		return nil, err
	}
	rows, out := m[0], m[1]
	width := s.Out[0].Shape[1:].Size()
	do := b.rowwise(op.Rows, len(rows)+len(out), 0, func(lo, hi int, _ []float32) {
		clear(out[lo*width : hi*width])
		for i, v := range indices {
			if int(v) >= lo && int(v) < hi {
				d := out[int(v)*width : (int(v)+1)*width]
				b.kernels.Add.VV(d, d, rows[i*width:(i+1)*width])
			}
		}
	})
	return &indexed{do, ir.CheckIndex{Bound: op.Rows, Ignore: noIgnore, What: "row"}, indices}, nil
}
