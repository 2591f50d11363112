package nn

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/nn/op"
)

// Window is the geometry of a convolution or pooling: height, then width.
type Window = op.Window

// WindowOption is an option of convolutions and poolings. What it sets is one number for height and width, or one for each.
type WindowOption struct {
	what string
	dims []int
	set  func(w *Window, v [2]int)
}

// KernelSize makes the window h high and w wide.
func KernelSize(h, w int) WindowOption {
	return WindowOption{"kernel size", []int{h, w}, func(w *Window, v [2]int) { w.Kernel = v }}
}

// Stride is the step from one window to the next. Without it, convolutions take 1, poolings the size of the kernel.
func Stride(hw ...int) WindowOption {
	return WindowOption{"stride", hw, func(w *Window, v [2]int) { w.Stride = v }}
}

// Padding is what is added on each side of the input. Without it, 0.
func Padding(hw ...int) WindowOption {
	return WindowOption{"padding", hw, func(w *Window, v [2]int) { w.Padding = v }}
}

// DilationOption is what [Dilation] returns.
type DilationOption struct{ o WindowOption }

// Dilation is the distance between the elements of a window. Without it, 1. Average pooling has none.
func Dilation(hw ...int) DilationOption {
	return DilationOption{WindowOption{"dilation", hw, func(w *Window, v [2]int) { w.Dilation = v }}}
}

func (o WindowOption) apply(w *Window, err *error) {
	switch len(o.dims) {
	case 1:
		o.set(w, [2]int{o.dims[0], o.dims[0]})
	case 2:
		o.set(w, [2]int{o.dims[0], o.dims[1]})
	default:
		*err = fmt.Errorf("%s takes one number, or height and width, not %d numbers", o.what, len(o.dims))
	}
}

func (o WindowOption) conv2d(l *Conv2dLayer)    { o.apply(&l.Window, &l.err) }
func (o WindowOption) maxPool2d(l *PoolLayer)   { o.apply(&l.Window, &l.err) }
func (o WindowOption) avgPool2d(l *PoolLayer)   { o.apply(&l.Window, &l.err) }
func (d DilationOption) conv2d(l *Conv2dLayer)  { d.o.conv2d(l) }
func (d DilationOption) maxPool2d(l *PoolLayer) { d.o.maxPool2d(l) }

// checkWindow reports a geometry that can't be.
func checkWindow(w Window) error {
	for d, name := range [2]string{"height", "width"} {
		switch {
		case w.Kernel[d] < 1:
			return fmt.Errorf("kernel %s is %d: it must be at least 1", name, w.Kernel[d])
		case w.Stride[d] < 1:
			return fmt.Errorf("stride in %s is %d: it must be at least 1", name, w.Stride[d])
		case w.Dilation[d] < 1:
			return fmt.Errorf("dilation in %s is %d: it must be at least 1", name, w.Dilation[d])
		case w.Padding[d] < 0:
			return fmt.Errorf("padding in %s is %d: it must not be negative", name, w.Padding[d])
		}
	}
	return nil
}

// Conv2dLayer is 2-d cross-correlation with a bias: [N, In, H, W] -> [N, Out, OH, OW].
type Conv2dLayer struct {
	In, Out int
	Window
	Weight *Parameter // [Out, In/Groups, KH, KW], uniform in ±1/sqrt(In/Groups KH KW)
	Bias   *Parameter // [Out], likewise; nil without bias

	err error
}

// Conv2dOption changes a [Conv2dLayer].
type Conv2dOption interface{ conv2d(*Conv2dLayer) }

// GroupsOption is what [Groups] returns.
type GroupsOption struct{ n int }

// Groups divides channels into n groups that see only one another. Without it, 1.
func Groups(n int) GroupsOption { return GroupsOption{n} }

func (o GroupsOption) conv2d(l *Conv2dLayer) { l.Groups = o.n }
func (NoBiasOption) conv2d(l *Conv2dLayer)   { l.Bias = nil }

// Conv2d returns a convolution of kernel x kernel windows, or what [KernelSize] says.
func Conv2d(in, out, kernel int, opts ...Conv2dOption) *Conv2dLayer {
	l := &Conv2dLayer{In: in, Out: out, Window: squareWindow(kernel, 1), Bias: NewParameter(nil, out)}
	for _, o := range opts {
		o.conv2d(l)
	}
	perGroup := in
	if l.Groups > 0 {
		perGroup = in / l.Groups
	}
	init := fanIn(perGroup * l.Kernel[0] * l.Kernel[1])
	l.Weight = NewParameter(init, out, perGroup, l.Kernel[0], l.Kernel[1])
	if l.Bias != nil {
		l.Bias = NewParameter(init, out)
	}
	return l
}

func squareWindow(kernel, stride int) Window {
	pair := func(n int) [2]int { return [2]int{n, n} }
	return Window{Kernel: pair(kernel), Stride: pair(stride), Dilation: pair(1), Groups: 1}
}

// String is "Conv2d 3->16 3x3".
func (l *Conv2dLayer) String() string {
	return fmt.Sprintf("Conv2d %d->%d %dx%d", l.In, l.Out, l.Kernel[0], l.Kernel[1])
}

func (l *Conv2dLayer) check() error {
	switch {
	case l.err != nil:
		return l.err
	case l.In < 1 || l.Out < 1:
		return fmt.Errorf("channels must be at least 1")
	case l.Groups < 1 || l.In%l.Groups != 0 || l.Out%l.Groups != 0:
		return fmt.Errorf("%d groups do not divide the channels evenly", l.Groups)
	}
	return checkWindow(l.Window)
}

// Forward implements [Module].
func (l *Conv2dLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, g.errorf(l, "%w", err)
	}
	s := x.Shape()
	if len(s) != 4 || s[1] != l.In {
		return nil, g.errorf(l, "input %s: wants [N, %d, H, W]", dims(s), l.In)
	}
	if err := fits(l.Window, s); err != nil {
		return nil, g.errorf(l, "%w", err)
	}
	y, err := op.Conv2d(x, g.Param(l.Weight), g.optional(l.Bias), l.Window)
	return g.leave(l, y, err)
}

// fits reports an input [N, C, H, W] that is smaller than one window.
func fits(w Window, s []int) error {
	if w.Out(0, s[2]) < 1 || w.Out(1, s[3]) < 1 {
		return fmt.Errorf("input %s is smaller than the kernel %v with dilation %v, padding %v", dims(s), w.Kernel, w.Dilation, w.Padding)
	}
	return nil
}
