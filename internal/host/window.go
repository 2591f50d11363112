package host

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// stepFunc is a step that needs nothing of its run.
type stepFunc func()

func (f stepFunc) run(*Exec) error {
	f()
	return nil
}

// convShape is the forward convolution of x by out filters.
func convShape(x ir.Shape, out int, w ir.Window) (kernel.Conv2dShape, error) {
	if len(x) != 4 || w.ChannelsLast {
		return kernel.Conv2dShape{}, fmt.Errorf("input %v is not [N,C,H,W]", x)
	}
	return kernel.Conv2dShape{
		N: x[0], C: x[1], H: x[2], W: x[3], Out: out,
		Kernel: w.Kernel, Stride: w.Stride, Padding: w.Padding, Dilation: w.Dilation, Groups: w.Groups,
	}, nil
}

func (b *builder) conv(s *ir.Step, w ir.Window) (step, error) {
	m, err := b.all(s.In[0], s.In[1], s.Out[0])
	if err != nil {
		return nil, err
	}
	bias, err := b.bias(s)
	if err != nil {
		return nil, err
	}
	shape, err := convShape(s.In[0].Shape, s.Out[0].Shape[1], w)
	if err != nil {
		return nil, err
	}
	plan, relu := kernel.NewConv2d(b.pool, shape), s.Epilogue.Relu
	return stepFunc(func() { plan.Run(m[2], m[0], m[1], bias, relu) }), nil
}

func (b *builder) convGradX(s *ir.Step, op ir.Conv2dGradX) (step, error) {
	m, err := b.all(s.In[0], s.In[1], s.Out[0])
	if err != nil {
		return nil, err
	}
	shape, err := convShape(op.In[:], s.In[0].Shape[0], op.Conv)
	if err != nil {
		return nil, err
	}
	plan := kernel.NewConv2dGradX(b.pool, shape)
	return stepFunc(func() { plan.Run(m[2], m[0], m[1]) }), nil
}

func (b *builder) convGradW(s *ir.Step, op ir.Conv2dGradW) (step, error) {
	m, err := b.all(s.In[0], s.In[1], s.Out[0])
	if err != nil {
		return nil, err
	}
	shape, err := convShape(s.In[0].Shape, s.Out[0].Shape[0], op.Conv)
	if err != nil {
		return nil, err
	}
	plan := kernel.NewConv2dGradW(b.pool, shape)
	return stepFunc(func() { plan.Run(m[2], m[0], m[1]) }), nil
}

// average plans an averaging of x.
func (b *builder) average(mode ir.PoolMode, w ir.Window, x, y ir.Shape) *kernel.AvgPool2d {
	if mode == ir.AdaptiveAvgPool {
		return kernel.NewAdaptiveAvgPool2d(b.pool, x[0]*x[1], x[2], x[3], y[2], y[3])
	}
	return kernel.NewAvgPool2d(b.pool, poolShape(w, x), mode == ir.AvgPool)
}

func poolShape(w ir.Window, x ir.Shape) kernel.Pool2dShape {
	return kernel.Pool2dShape{
		Planes: x[0] * x[1], H: x[2], W: x[3],
		Kernel: w.Kernel, Stride: w.Stride, Padding: w.Padding, Dilation: w.Dilation,
	}
}

func (b *builder) poolForward(s *ir.Step, op ir.Pool2d) (step, error) {
	m, err := b.all(s.In[0], s.Out[0])
	if err != nil {
		return nil, err
	}
	x, y := s.In[0].Shape, s.Out[0].Shape
	if op.Mode == ir.MaxPool {
		plan := kernel.NewMaxPool2d(b.pool, poolShape(op.Pool, x))
		return stepFunc(func() { plan.Run(m[1], m[0]) }), nil
	}
	plan := b.average(op.Mode, op.Pool, x, y)
	return stepFunc(func() { plan.Run(m[1], m[0]) }), nil
}

func (b *builder) poolGrad(s *ir.Step, op ir.Pool2dGrad) (step, error) {
	if op.Mode == ir.MaxPool {
		m, err := b.all(s.In[0], s.In[1], s.Out[0])
		if err != nil {
			return nil, err
		}
		plan := kernel.NewMaxPool2d(b.pool, poolShape(op.Pool, s.In[0].Shape))
		return stepFunc(func() { plan.Grad(m[2], m[0], m[1]) }), nil
	}
	m, err := b.all(s.In[0], s.Out[0])
	if err != nil {
		return nil, err
	}
	plan := b.average(op.Mode, op.Pool, op.In[:], s.In[0].Shape)
	return stepFunc(func() { plan.Grad(m[1], m[0]) }), nil
}
