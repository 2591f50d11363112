package host

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// matMul is [B,M,K] x [B,K,N] -> [B,M,N], or without B.
type matMul struct {
	plan    *kernel.Gemm
	c, a, b kernel.Matrix
	epi     kernel.Epilogue
}

// product is a product with all of its epilogue.
func (b *builder) product(s *ir.Step) (step, error) {
	plain := s.Plain()
	first, err := b.matMul(&plain[0])
	if err != nil || len(plain) == 1 {
		return first, err
	}
	seq := sequence{first}
	for i := range plain[1:] {
		next, err := b.build(&plain[1+i])
		if err != nil {
			return nil, err
		}
		seq = append(seq, next)
	}
	return seq, nil
}

func (b *builder) matMul(s *ir.Step) (step, error) {
	var m [3]kernel.Matrix
	for i, o := range [...]ir.Operand{s.Out[0], s.In[0], s.In[1]} {
		f, err := b.floats(o)
		if err != nil {
			return nil, err
		}
		n := len(o.Shape)
		if n != 2 && n != 3 {
			return nil, fmt.Errorf("operand %v is no matrix", o)
		}
		m[i] = kernel.Matrix{Data: f, Row: o.Strides[n-2], Col: o.Strides[n-1]}
		if n == 3 {
			m[i].Batch = o.Strides[0]
		}
	}
	x, y := s.In[0].Shape, s.Out[0].Shape
	n := len(y)
	shape := kernel.GemmShape{M: y[n-2], N: y[n-1], K: x[n-1], Batch: y[:n-2].Size()}
	p := &matMul{c: m[0], a: m[1], b: m[2], epi: kernel.Epilogue{ReLU: s.Epilogue.Relu}}
	var err error
	if p.epi.ColBias, err = b.bias(s); err != nil {
		return nil, err
	}
	if shape.N == 1 {
		p.c.Col = 1 // the stride of a single column means nothing
	}
	if y.Size() == 0 {
		return sequence(nil), nil
	}
	p.plan = kernel.NewGemm(b.pool, shape)
	return p, nil
}

// bias is the epilogue's vector, or nil.
func (b *builder) bias(s *ir.Step) ([]float32, error) {
	if s.Epilogue.Bias == 0 {
		return nil, nil
	}
	return b.contiguous(s.In[s.Epilogue.Bias])
}

func (p *matMul) run(*Exec) error {
	p.plan.Run(p.c, p.a, p.b, p.epi)
	return nil
}
