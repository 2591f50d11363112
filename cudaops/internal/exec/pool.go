package exec

import (
	"fmt"
	"slices"

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

// cells are how many windows that lie side by side cover the input, the last ones not wholly in it.
func (p pooling) cells() int {
	return p.x[0] * p.x[1] * blocks(p.x[2], p.window.Kernel[0]) * blocks(p.x[3], p.window.Kernel[1])
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

// placed is the C++ of a Pool of places.cuh, for operands of which all but the words of places are listed.
func (p pooling) placed(list ...ir.Operand) string {
	x, y := p.x, p.y
	even := true
	for _, o := range list {
		even = even && at(o).even(o.DType.Size())
	}
	index := indexType(x[0]*x[1]*x[2]*x[3]+lanes*threads, x[0]*x[1]*y[2]*y[3]+lanes*threads)
	return fmt.Sprintf("Pool<%s, %d, %d, %d, %d, %d, %s, %t>", index, x[1], x[2], x[3], y[2], y[3], windows(p.window), even)
}

// maxPool is a max pooling with channels last: its values, its places, or both.
func (b *planner) maxPool(w ir.Window, x ir.Operand, y, places *ir.Operand) error {
	list, args := []ir.Operand{x}, []place{at(x)}
	params, values, words := []string{reads(x, "x")}, "(float *)nullptr", "nullptr"
	var n int // windows of four channels
	var p pooling
	if places != nil {
		values := *places
		values.Shape = slices.Clone(places.Shape)
		values.Shape[3] *= lanes
		p, n, words = newPooling(w, x, values), places.Shape.Size(), "places"
	}
	if y != nil {
		list, params, args = append(list, *y), append(params, writes(*y, "y")), append(args, at(*y))
		p, n, values = newPooling(w, x, *y), y.Shape.Size()/lanes, "y"
	}
	if places != nil {
		params, args = append(params, writes(*places, "places")), append(args, at(*places))
	}
	if err := contiguous(list...); err != nil || n == 0 {
		return err
	}
	text := fmt.Sprintf("%s    maxPlaces<%s, %d, %t, %t>(x, %s, %s);\n}\n", waiting(params...), p.placed(list...), n, y != nil, places != nil, values, words)
	b.launch(b.kernel("pool", text, "places"), blocks(n, threads), args...)
	return nil
}

func (b *planner) pool(s *ir.Step, op ir.Pool2d) error {
	x, y := s.In[0], s.Out[0]
	if op.Mode == ir.MaxPool && op.Pool.Places(x.Shape[3]) {
		if s.Epilogue.Places {
			return b.maxPool(op.Pool, x, &y, &s.Out[1])
		}
		return b.maxPool(op.Pool, x, &y, nil)
	}
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
	if err := contiguous(slices.Concat(s.In, s.Out[:1])...); err != nil {
		return err
	}
	dx := s.Out[0]
	n := dx.Shape.Size()
	if n == 0 {
		return nil
	}
	p := newPooling(op.Pool, dx, s.In[len(s.In)-1])
	w := op.Pool
	beside := w.Kernel == w.Stride && w.Padding == [2]int{} && w.Dilation == [2]int{1, 1}
	if op.Placed {
		places, dy := s.In[0], s.In[1]
		f, n := "placedGrad", n/lanes
		if beside {
			f, n = "placedGradBeside", p.cells()/lanes
		}
		text := call(fmt.Sprintf("%s<%s, %d>", f, p.placed(dy, dx), n), reads(places, "places"), reads(dy, "dy"), writes(dx, "dx"))
		b.launch(b.kernel("poolGrad", text, "places"), blocks(n, threads), at(places), at(dy), at(dx))
		return nil
	}
	geometry := p.geometry()
	params, args := []string{reads(s.In[len(s.In)-1], "dy"), writes(dx, "dx")}, []place{at(s.In[0]), at(dx)}
	var f string
	switch op.Mode {
	case ir.MaxPool:
		f = fmt.Sprintf("maxPoolGrad<%s, %s>", geometry, windows(op.Pool))
		params, args = append([]string{reads(s.In[0], "x")}, params...), []place{at(s.In[0]), at(s.In[1]), at(dx)}
		if beside {
			f, n = fmt.Sprintf("maxPoolGradBeside<%s, %d, %d>", geometry, w.Kernel[0], w.Kernel[1]), p.cells()
		}
	case ir.AdaptiveAvgPool:
		f = fmt.Sprintf("adaptivePoolGrad<%s>", geometry)
	default:
		f = fmt.Sprintf("avgPoolGrad<%s, %s, %t>", geometry, windows(op.Pool), op.Mode == ir.AvgPool)
	}
	b.launch(b.kernel("poolGrad", call(f, params...), "pool"), blocks(n, threads), args...)
	return nil
}
