package nn

import (
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/nn/op"
)

// SequentialModel applies modules one after the other.
type SequentialModel struct {
	Modules []Module `nn:"."`
}

// Sequential returns the modules in a row. Their parameters are called "0.weight", "2.bias" and so on.
func Sequential(modules ...Module) *SequentialModel { return &SequentialModel{Modules: modules} }

// String is "Sequential of 4".
func (s *SequentialModel) String() string { return fmt.Sprintf("Sequential of %d", len(s.Modules)) }

// Forward implements [Module].
func (s *SequentialModel) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(s, x); err != nil {
		return nil, err
	}
	for i, m := range s.Modules {
		if m == nil {
			return nil, g.errorf(s, "module %d is nil", i)
		}
		var err error
		if x, err = m.Forward(g, x); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// ResidualBlock adds its input to what its modules make of it: x + f(x).
type ResidualBlock struct {
	Modules []Module `nn:"."`
}

// Residual returns x + f(x), f being the modules in a row. f must keep the shape.
func Residual(modules ...Module) *ResidualBlock { return &ResidualBlock{Modules: modules} }

// String is "Residual of 3".
func (r *ResidualBlock) String() string { return fmt.Sprintf("Residual of %d", len(r.Modules)) }

// Forward implements [Module].
func (r *ResidualBlock) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(r, x); err != nil {
		return nil, err
	}
	y := x
	for i, m := range r.Modules {
		if m == nil {
			return nil, g.errorf(r, "module %d is nil", i)
		}
		var err error
		if y, err = m.Forward(g, y); err != nil {
			return nil, err
		}
	}
	switch {
	case y == nil:
		return nil, g.errorf(r, "the modules have no output: Forward of the last returns nil")
	case !slices.Equal(x.Shape(), y.Shape()):
		return nil, g.errorf(r, "input %s becomes %s: the modules must keep the shape", dims(x.Shape()), dims(y.Shape()))
	}
	sum, err := op.Add(x, y)
	return g.leave(r, sum, err)
}

// IdentityLayer returns its input.
type IdentityLayer struct{ _ byte } // of a size, so that two have two addresses

// Identity changes nothing.
func Identity() *IdentityLayer { return new(IdentityLayer) }

// String is "Identity".
func (*IdentityLayer) String() string { return "Identity" }

// Forward implements [Module].
func (l *IdentityLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	return x, g.enter(l, x)
}

// FlattenLayer joins the dimensions Start to End, both counted from the end if negative.
type FlattenLayer struct{ Start, End int }

// Flatten joins all dimensions but the first: [N, C, H, W] -> [N, CHW].
func Flatten() *FlattenLayer { return &FlattenLayer{1, -1} }

// String is "Flatten 1..-1".
func (l *FlattenLayer) String() string { return fmt.Sprintf("Flatten %d..%d", l.Start, l.End) }

// Forward implements [Module].
func (l *FlattenLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	s := x.Shape()
	start, end := l.Start, l.End
	if start < 0 {
		start += len(s)
	}
	if end < 0 {
		end += len(s)
	}
	if start < 0 || end >= len(s) || start > end {
		return nil, g.errorf(l, "input %s has no such dimensions", dims(s))
	}
	to := append([]int{}, s[:start]...)
	to = append(to, sizeOf(s[start:end+1]))
	y, err := op.Reshape(x, append(to, s[end+1:]...)...)
	return g.leave(l, y, err)
}
