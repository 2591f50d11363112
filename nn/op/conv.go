package op

import (
	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Window is the geometry of a convolution or pooling: height, then width.
type Window = ir.Window

// Conv2d is cross-correlation: x [N, C, H, W], w [O, C/groups, KH, KW], b [O] or nil -> [N, O, OH, OW].
func Conv2d(x, w, b *gorgonia.Node, geometry Window) (*gorgonia.Node, error) {
	if b == nil {
		return apply(conv2d{geometry}, x, w)
	}
	return apply(conv2d{geometry}, x, w, b)
}

type conv2d struct{ Conv ir.Window }

func (k conv2d) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	y := g.Add(ir.Conv2d(k), nil, a[0], a[1])
	if len(a) == 3 {
		y = g.Plus(y, g.Reshape(a[2], a[2].Shape.Size(), 1, 1))
	}
	return y
}

func (conv2d) wrt(int) bool { return true }

func (k conv2d) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	var g grads
	g.add(apply(conv2dGradX{k.Conv, [4]int(a[0].Shape())}, a[1], dy))
	g.add(apply(conv2dGradW(k), a[0], dy))
	if len(a) == 3 {
		g.add(apply(channelSum{}, dy))
	}
	return g.get()
}

// conv2dGradX is w, dy -> dx of shape In.
type conv2dGradX struct {
	Conv ir.Window
	In   [4]int
}

func (k conv2dGradX) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	return g.Add(ir.Conv2dGradX(k), nil, a...)
}

// conv2dGradW is x, dy -> dw.
type conv2dGradW struct{ Conv ir.Window }

func (k conv2dGradW) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	return g.Add(ir.Conv2dGradW(k), nil, a...)
}

// MaxPool2d is the largest element of each window; padding counts as -inf. x [N, C, H, W] -> [N, C, OH, OW].
func MaxPool2d(x *gorgonia.Node, w Window) (*gorgonia.Node, error) {
	return apply(pool2d{Mode: ir.MaxPool, Pool: w}, x)
}

// AvgPool2d is the mean of each window; padding counts as zeros, or not at all if excludePadding.
func AvgPool2d(x *gorgonia.Node, w Window, excludePadding bool) (*gorgonia.Node, error) {
	mode := ir.AvgPool
	if excludePadding {
		mode = ir.AvgPoolNoPad
	}
	return apply(pool2d{Mode: mode, Pool: w}, x)
}

// AdaptiveAvgPool2d is the mean of h x w windows that cover x [N, C, H, W] -> [N, C, h, w].
func AdaptiveAvgPool2d(x *gorgonia.Node, h, w int) (*gorgonia.Node, error) {
	return apply(pool2d{Mode: ir.AdaptiveAvgPool, OutHW: [2]int{h, w}}, x)
}

type pool2d struct {
	Mode  ir.PoolMode
	Pool  ir.Window
	OutHW [2]int
}

func (k pool2d) Lower(g *ir.Graph, a []*ir.Value) *ir.Value { return g.Add(ir.Pool2d(k), nil, a[0]) }

func (pool2d) wrt(int) bool { return true }

func (k pool2d) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	grad := pool2dGrad{Mode: k.Mode, Pool: k.Pool, OutHW: k.OutHW, In: [4]int(a[0].Shape())}
	args := []*gorgonia.Node{dy}
	if k.Mode == ir.MaxPool {
		args = []*gorgonia.Node{a[0], dy}
	}
	dx, err := apply(grad, args...)
	return gorgonia.Nodes{dx}, err
}

type pool2dGrad struct {
	Mode  ir.PoolMode
	Pool  ir.Window
	OutHW [2]int
	In    [4]int
}

func (k pool2dGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	return g.Add(ir.Pool2dGrad{Mode: k.Mode, Pool: k.Pool, OutHW: k.OutHW, In: k.In}, nil, a...)
}
