package nn

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/nn/op"
)

// PoolLayer reduces windows of each channel to one number: [N, C, H, W] -> [N, C, OH, OW].
type PoolLayer struct {
	Window
	Max            bool // the largest, else the mean
	ExcludePadding bool // means don't count padding

	err error
}

// MaxPool2dOption changes a [MaxPool2d].
type MaxPool2dOption interface{ maxPool2d(*PoolLayer) }

// AvgPool2dOption changes an [AvgPool2d].
type AvgPool2dOption interface{ avgPool2d(*PoolLayer) }

// MaxPool2d takes the largest element of each kernel x kernel window. Padding is never the largest.
func MaxPool2d(kernel int, opts ...MaxPool2dOption) *PoolLayer {
	l := &PoolLayer{Window: squareWindow(kernel, 0), Max: true}
	for _, o := range opts {
		o.maxPool2d(l)
	}
	l.defaultStride()
	return l
}

// AvgPool2d takes the mean of each kernel x kernel window.
func AvgPool2d(kernel int, opts ...AvgPool2dOption) *PoolLayer {
	l := &PoolLayer{Window: squareWindow(kernel, 0)}
	for _, o := range opts {
		o.avgPool2d(l)
	}
	l.defaultStride()
	return l
}

// defaultStride makes windows lie side by side where no option says otherwise.
func (l *PoolLayer) defaultStride() {
	if l.Stride == [2]int{} {
		l.Stride = l.Kernel
	}
}

// ExcludePaddingOption is what [ExcludePadding] returns.
type ExcludePaddingOption struct{}

// ExcludePadding makes an average count real elements only. Without it, padding counts as zeros.
func ExcludePadding() ExcludePaddingOption { return ExcludePaddingOption{} }

func (ExcludePaddingOption) avgPool2d(l *PoolLayer) { l.ExcludePadding = true }

// String is "MaxPool2d 2x2".
func (l *PoolLayer) String() string {
	name := "AvgPool2d"
	if l.Max {
		name = "MaxPool2d"
	}
	return fmt.Sprintf("%s %dx%d", name, l.Kernel[0], l.Kernel[1])
}

func (l *PoolLayer) check() error {
	if l.err != nil {
		return l.err
	}
	if err := checkWindow(l.Window); err != nil {
		return err
	}
	for d := range 2 {
		if l.Padding[d] > l.Kernel[d]/2 {
			return fmt.Errorf("padding %v is more than half of the kernel %v, so that some windows would hold nothing else", l.Padding, l.Kernel)
		}
	}
	return nil
}

// Forward implements [Module].
func (l *PoolLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, g.errorf(l, "%w", err)
	}
	s := x.Shape()
	if len(s) != 4 {
		return nil, g.errorf(l, "input %s: wants [N, C, H, W]", dims(s))
	}
	if err := fits(l.Window, s); err != nil {
		return nil, g.errorf(l, "%w", err)
	}
	if l.Max {
		y, err := op.MaxPool2d(x, l.Window)
		return g.leave(l, y, err)
	}
	y, err := op.AvgPool2d(x, l.Window, l.ExcludePadding)
	return g.leave(l, y, err)
}

// AdaptivePoolLayer takes the means of H x W windows that cover the input evenly: [N, C, h, w] -> [N, C, H, W].
type AdaptivePoolLayer struct{ H, W int }

// AdaptiveAvgPool2d makes the output h x w whatever the input's size. Window i of n covers floor(i in/n) to
// ceil((i+1) in/n) - 1.
func AdaptiveAvgPool2d(h, w int) *AdaptivePoolLayer { return &AdaptivePoolLayer{h, w} }

// String is "AdaptiveAvgPool2d 1x1".
func (l *AdaptivePoolLayer) String() string { return fmt.Sprintf("AdaptiveAvgPool2d %dx%d", l.H, l.W) }

// Forward implements [Module].
func (l *AdaptivePoolLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	if l.H < 1 || l.W < 1 {
		return nil, g.errorf(l, "output sizes must be at least 1")
	}
	if x.Shape().Dims() != 4 {
		return nil, g.errorf(l, "input %s: wants [N, C, H, W]", dims(x.Shape()))
	}
	y, err := op.AdaptiveAvgPool2d(x, l.H, l.W)
	return g.leave(l, y, err)
}
