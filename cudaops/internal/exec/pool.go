package exec

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
)

// pooling is the shapes of a pooling, in the order [N,C,H,W].
type pooling struct {
	x, y   [4]int
	window ir.Window
}

func newPooling(w ir.Window, x, y ir.Operand) pooling {
	return pooling{w.ToNCHW([4]int(x.Shape)), w.ToNCHW([4]int(y.Shape)), w}
}

// geometry is the C++ that forward and gradient have in common: the template arguments up to those of the window.
func (p pooling) geometry() string {
	x, y := p.x, p.y
	planes, apart := x[0]*x[1], 1
	if p.window.ChannelsLast {
		apart = x[1]
	}
	index := indexType(planes*x[2]*x[3]+threads, planes*y[2]*y[3]+threads)
	return fmt.Sprintf("%s, %d, %d, %d, %d, %d, %d", index, planes, apart, x[2], x[3], y[2], y[3])
}

// windows are the template arguments of a window.
func windows(w ir.Window) string {
	axis := func(d int) string {
		return fmt.Sprintf("Axis<%d, %d, %d, %d>", w.Kernel[d], w.Stride[d], w.Padding[d], w.Dilation[d])
	}
	return fmt.Sprintf("%d, %d, %s, %s", w.Kernel[0], w.Kernel[1], axis(0), axis(1))
}

func (b *planner) pool(op ir.Pool2d, x, y ir.Operand) error {
	if err := contiguous(x, y); err != nil {
		return err
	}
	n := y.Shape.Size()
	if n == 0 {
		return nil
	}
	p := newPooling(op.Pool, x, y)
	geometry := p.geometry()
	var f string
	g := 1 // threads an output
	switch op.Mode {
	case ir.MaxPool:
		f = fmt.Sprintf("maxPool<%s, %s>", geometry, windows(op.Pool))
	case ir.AdaptiveAvgPool:
		if area := p.x[2] * p.x[3] / (p.y[2] * p.y[3]); area > 8 && !op.Pool.ChannelsLast {
			g = min(32, ceilPow2(area/2))
		}
		f = fmt.Sprintf("adaptivePool<%s, %d>", geometry, g)
	default:
		f = fmt.Sprintf("avgPool<%s, %s, %t>", geometry, windows(op.Pool), op.Mode == ir.AvgPool)
	}
	b.launch(b.kernel("pool", call(f, reads(x, "x"), writes(y, "y")), "pool"), blocks(n, threads/g), at(x), at(y))
	return nil
}

func (b *planner) poolGrad(s *ir.Step, op ir.Pool2dGrad) error {
	if err := contiguous(append(s.In, s.Out[0])...); err != nil {
		return err
	}
	dx := s.Out[0]
	n := dx.Shape.Size()
	if n == 0 {
		return nil
	}
	p := newPooling(op.Pool, dx, s.In[len(s.In)-1])
	geometry := p.geometry()
	params, args := []string{reads(s.In[len(s.In)-1], "dy"), writes(dx, "dx")}, []place{at(s.In[0]), at(dx)}
	var f string
	switch op.Mode {
	case ir.MaxPool:
		f = fmt.Sprintf("maxPoolGrad<%s, %s>", geometry, windows(op.Pool))
		params, args = append([]string{reads(s.In[0], "x")}, params...), []place{at(s.In[0]), at(s.In[1]), at(dx)}
		if w := op.Pool; w.Kernel == w.Stride && w.Padding == [2]int{} && w.Dilation == [2]int{1, 1} {
			f = fmt.Sprintf("maxPoolGradBeside<%s, %d, %d>", geometry, w.Kernel[0], w.Kernel[1])
			n = p.x[0] * p.x[1] * blocks(p.x[2], w.Kernel[0]) * blocks(p.x[3], w.Kernel[1])
		}
	case ir.AdaptiveAvgPool:
		f = fmt.Sprintf("adaptivePoolGrad<%s>", geometry)
	default:
		f = fmt.Sprintf("avgPoolGrad<%s, %s, %t>", geometry, windows(op.Pool), op.Mode == ir.AvgPool)
	}
	b.launch(b.kernel("poolGrad", call(f, params...), "pool"), blocks(n, threads), args...)
	return nil
}
