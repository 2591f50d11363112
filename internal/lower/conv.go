package lower

import (
	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Gorgonia's Conv2d lays the patches of the image out as rows (Im2Col), multiplies them by the filters, and puts the channels
// back in their place. With patches P = im2col(x) as [n*oh*ow, c*kh*kw] and filters W as [o, c*kh*kw], the graph and its gradient hold
//
//	Y  = P Wᵀ        [n*oh*ow, o]      the convolution
//	dW = dYᵀ P       [o, c*kh*kw]      its gradient by the filters
//	dx = col2im(dY W)                  its gradient by the image
//
// where Y and dY are images with the channels last. planConv finds these three and writes them as ir's convolutions, so that P is
// never made; the transposes between [n,o,oh,ow] and [n,oh,ow,o] are views that meet Gorgonia's own and cancel.

// planConv makes s a convolution if it is one of the three.
func (l *lowering) planConv(s *step, kind string) bool {
	switch kind {
	case "linAlgBinOp":
		op := attrsOf(s.n.Op())
		if op.byte("āBinaryOperator") != matMul {
			return false
		}
		a, b, transA, transB := s.needs[0], s.needs[1], op.bool("transA"), op.bool("transB")
		if p, ok := patchesOf(a); ok && !transA && transB {
			s.needs, s.rule = []*gorgonia.Node{p.x, b}, p.conv
			return true
		}
		if p, ok := patchesOf(b); ok && transA && !transB {
			s.needs, s.rule = []*gorgonia.Node{p.x, a}, p.convGradW
			return true
		}
	case "col2imOp":
		rows, ok := below(s.n, "reshapeOp")
		if !ok {
			return false
		}
		prod, ok := below(rows, "linAlgBinOp")
		if !ok {
			return false
		}
		op := attrsOf(prod.Op())
		if op.byte("āBinaryOperator") != matMul || op.bool("transA") || op.bool("transB") {
			return false
		}
		s.needs = children(prod)
		s.rule = patches{window: windowOf(s.n.Op()), in: ir.Shape(s.n.Shape())}.convGradX
		return true
	}
	return false
}

// below returns n's first child if its op is of that kind.
func below(n *gorgonia.Node, kind string) (*gorgonia.Node, bool) {
	c := children(n)[0]
	return c, c.Op() != nil && kindOf(c.Op()) == kind
}

// patches is an im2col: of which image, of which shape, by which window.
type patches struct {
	x      *gorgonia.Node
	window ir.Window
	in     ir.Shape // [n,c,h,w]
}

// patchesOf recognises n as im2col(x), reshaped to one patch a row.
func patchesOf(n *gorgonia.Node) (patches, bool) {
	if n.Op() == nil || kindOf(n.Op()) != "reshapeOp" || n.Dims() != 2 {
		return patches{}, false
	}
	col, ok := below(n, "im2colOp")
	if !ok || n.Shape()[1] != col.Shape()[3] {
		return patches{}, false
	}
	x := children(col)[0]
	return patches{x, windowOf(col.Op()), ir.Shape(x.Shape())}, true
}

// windowOf reads the geometry of an im2colOp or col2imOp.
func windowOf(op gorgonia.Op) ir.Window {
	a := attrsOf(op)
	return ir.Window{
		Kernel: a.pair("h", "w"), Stride: a.pair("strideH", "strideW"), Padding: a.pair("padH", "padW"),
		Dilation: a.pair("dilationH", "dilationW"), Groups: 1,
	}
}

// rows turns an image [n,o,oh,ow] into Y [n*oh*ow,o]; image turns it back.
func (p patches) rows(g *ir.Graph, y *ir.Value) *ir.Value {
	s := y.Shape
	return g.Reshape(g.Transpose(y, 0, 2, 3, 1), s[0]*s[2]*s[3], s[1])
}

func (p patches) image(g *ir.Graph, y *ir.Value) *ir.Value {
	oh, ow := p.window.Out(0, p.in[2]), p.window.Out(1, p.in[3])
	return g.Transpose(g.Reshape(y, p.in[0], oh, ow, y.Shape[1]), 0, 3, 1, 2)
}

// filters turns W [o, c*kh*kw] into [o,c,kh,kw].
func (p patches) filters(g *ir.Graph, w *ir.Value) *ir.Value {
	return g.Reshape(w, w.Shape[0], p.in[1], p.window.Kernel[0], p.window.Kernel[1])
}

// conv is x, W -> Y.
func (p patches) conv(c *call, args []*ir.Value) (*ir.Value, error) {
	return p.rows(c.g, c.g.Add(ir.Conv2d{Conv: p.window}, nil, args[0], p.filters(c.g, args[1]))), nil
}

// convGradW is x, dY -> dW.
func (p patches) convGradW(c *call, args []*ir.Value) (*ir.Value, error) {
	dw := c.g.Add(ir.Conv2dGradW{Conv: p.window}, nil, args[0], p.image(c.g, args[1]))
	return c.g.Reshape(dw, c.shape...), nil
}

// convGradX is dY, W -> dx.
func (p patches) convGradX(c *call, args []*ir.Value) (*ir.Value, error) {
	op := ir.Conv2dGradX{Conv: p.window, In: [4]int(p.in)}
	return c.g.Add(op, nil, p.filters(c.g, args[1]), p.image(c.g, args[0])), nil
}

// im2col stands alone when somebody calls Im2Col himself: x [n,c,h,w] -> [n,oh,ow,c*kh*kw], one strided slice of the padded image
// for each place in the window.
func im2col(c *call, args []*ir.Value) (*ir.Value, error) {
	g, x, p := c.g, args[0], patches{window: windowOf(c.n.Op()), in: args[0].Shape}
	n, ch, oh, ow := x.Shape[0], x.Shape[1], c.shape[1], c.shape[2]
	padded := p.padded()
	if pad := p.window.Padding; pad != [2]int{} {
		x = g.Add(ir.Unslice{Start: []int{0, 0, pad[0], pad[1]}, Stop: padded, Step: ones(4)}, nil, x)
	}
	var all []*ir.Value
	for _, start := range p.places() {
		taken := p.slice(start, oh, ow)
		all = append(all, g.Reshape(g.Add(taken, nil, x), n, ch, 1, oh, ow))
	}
	cols := g.Add(ir.Concat{Axis: 2}, nil, all...) // [n,c,kh*kw,oh,ow]
	return g.Reshape(g.Transpose(cols, 0, 3, 4, 1, 2), c.shape...), nil
}

// col2im is the adjoint of im2col: what each place of the window took is added back to where it came from.
func col2im(c *call, args []*ir.Value) (*ir.Value, error) {
	g, col, p := c.g, args[0], patches{window: windowOf(c.n.Op()), in: c.shape}
	n, ch, oh, ow := c.shape[0], c.shape[1], col.Shape[1], col.Shape[2]
	places := p.places()
	cols := g.Transpose(g.Reshape(col, n, oh, ow, ch, len(places)), 0, 3, 4, 1, 2) // [n,c,kh*kw,oh,ow]
	var sum *ir.Value
	for i, start := range places {
		s := p.slice(start, oh, ow)
		part := g.Add(ir.Unslice{Start: s.Start, Stop: p.padded(), Step: s.Step}, nil, g.Squeeze(g.SliceAxis(cols, 2, i, i+1), 2))
		if sum == nil {
			sum = part
		} else {
			sum = g.Plus(sum, part)
		}
	}
	h, w := p.window.Padding[0], p.window.Padding[1]
	return g.SliceAxis(g.SliceAxis(sum, 2, h, h+c.shape[2]), 3, w, w+c.shape[3]), nil
}

// padded is the shape of the image with its padding.
func (p patches) padded() ir.Shape {
	return ir.Of(p.in[0], p.in[1], p.in[2]+2*p.window.Padding[0], p.in[3]+2*p.window.Padding[1])
}

// places lists where in the padded image each element of the first window lies, row by row.
func (p patches) places() [][2]int {
	var at [][2]int
	for i := range p.window.Kernel[0] {
		for j := range p.window.Kernel[1] {
			at = append(at, [2]int{i * p.window.Dilation[0], j * p.window.Dilation[1]})
		}
	}
	return at
}

// slice takes, of the padded image, what all oh x ow windows have at one place.
func (p patches) slice(start [2]int, oh, ow int) ir.Slice {
	sh, sw := p.window.Stride[0], p.window.Stride[1]
	return ir.Slice{
		Start: []int{0, 0, start[0], start[1]},
		Stop:  []int{p.in[0], p.in[1], start[0] + (oh-1)*sh + 1, start[1] + (ow-1)*sw + 1},
		Step:  []int{1, 1, sh, sw},
	}
}
