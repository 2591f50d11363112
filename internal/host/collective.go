package host

import "github.com/tandem-train/tandem/internal/ir"

// collective asks the run's Comm to exchange a range; a rank that is alone has the result already.
type collective struct {
	op       ir.Collective
	dst, src []float32 // the same range, or src is copied first
}

func (b *builder) collective(s *ir.Step, op ir.Collective) (step, error) {
	src, err := b.contiguous(s.In[0])
	if err != nil {
		return nil, err
	}
	dst, err := b.contiguous(s.Out[0])
	if err != nil {
		return nil, err
	}
	return &collective{op, dst, src}, nil
}

func (s *collective) run(e *Exec) error {
	copy(s.dst, s.src)
	if e.rt.Comm == nil {
		return nil
	}
	return e.rt.Comm.Collective(e.ctx, s.op, s.dst)
}
