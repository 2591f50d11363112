package exec

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// inBestWay plans a product or a convolution in the way that is the fastest.
func (b *planner) inBestWay(s *ir.Step) error {
	w, err := b.choose(b, s)
	if err != nil {
		return err
	}
	if !w.rival {
		return w.plan(b, s)
	}
	return b.aside(func() error { return w.plan(b, s) })
}

// matrices is a product of matrices, batch times, each operand's strides by row, column and batch.
type matrices struct {
	batch, m, n, k int
	at             [3]place // a, b, c
	dtype          [3]ir.DType
	strides        [3][3]int
	bias           place
	biasType       ir.DType
	biased, relu   bool
	mask           place
	maskType       ir.DType
	maskStrides    [2]int
	masked         bool
	sums           place // of a's rows
	summed         bool
}

// newMatrices is the product of a step with all of its epilogue.
func newMatrices(s *ir.Step) (p matrices, err error) {
	a, c := s.In[0], s.Out[0]
	n := len(c.Shape)
	if n != 2 && n != 3 {
		return p, fmt.Errorf("operand %v is no matrix", c)
	}
	p = matrices{batch: c.Shape[:n-2].Size(), m: c.Shape[n-2], n: c.Shape[n-1], k: a.Shape[n-1], relu: s.Epilogue.Relu}
	for i, o := range [...]ir.Operand{a, s.In[1], c} {
		if o.DType == ir.I32 {
			return p, fmt.Errorf("operand %v is no number", o)
		}
		p.at[i], p.dtype[i] = at(o), o.DType
		p.strides[i] = [3]int{o.Strides[n-2], o.Strides[n-1]}
		if n == 3 {
			p.strides[i][2] = o.Strides[0]
		}
	}
	if i := s.Epilogue.Bias; i != 0 {
		if err := contiguous(s.In[i]); err != nil {
			return p, err
		}
		p.bias, p.biasType, p.biased = at(s.In[i]), s.In[i].DType, true
	}
	if i := s.Epilogue.Mask; i != 0 {
		p.mask, p.maskType, p.masked, p.maskStrides = at(s.In[i]), s.In[i].DType, true, [2]int(s.In[i].Strides[n-2:])
	}
	if s.Epilogue.Sums {
		p.sums, p.summed = at(s.Out[1]), true
	}
	return p, nil
}

// extents are the rows and columns of an operand, or of the result.
func (p matrices) extents(i int) (rows, columns int) {
	return [...]int{p.m, p.k, p.m}[i], [...]int{p.k, p.n, p.n}[i]
}

// bytes are those from the first element of an operand, or of the result, to behind the last.
func (p matrices) bytes(i int) int {
	rows, columns := p.extents(i)
	s := p.strides[i]
	return reach(ir.Of(p.batch, rows, columns), []int{s[2], s[0], s[1]}) * p.dtype[i].Size()
}

// operands are where those of a product without a mask lie, and its results.
func (p matrices) operands() []span {
	on := []span{p.at[0].span(p.bytes(0), false), p.at[1].span(p.bytes(1), false), p.at[2].span(p.bytes(2), true)}
	if p.biased {
		on = append(on, p.bias.span(p.n*p.biasType.Size(), false))
	}
	if p.summed {
		on = append(on, p.sums.span(p.m*wordBytes, true))
	}
	return on
}

func (b *planner) ownMatMul(p matrices) error {
	s := p.strides
	x, y, v, o := ctype(p.dtype[0]), ctype(p.dtype[1]), ctype(p.biasType), ctype(p.dtype[2])
	t := fmt.Sprintf("MatMul<%d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %t, %t, %s, %s, %s, %s>", p.batch, p.m, p.n, p.k,
		s[0][0], s[0][1], s[0][2], s[1][0], s[1][1], s[1][2], s[2][0], s[2][1], s[2][2], p.biased, p.relu, x, y, v, o)
	params, args := []string{"const " + x + " *x", "const " + y + " *y"}, []place{p.at[0], p.at[1]}
	bias := "nullptr"
	if p.biased {
		params, args, bias = append(params, "const "+v+" *bias"), append(args, p.bias), "bias"
	}
	return b.only(p.operands(), func() error {
		return b.tiles("matMul", t, fmt.Sprintf("x, y, %s, out", bias), p.batch, p.m, p.n, p.k, append(params, o+" *out"), append(args, p.at[2]))
	})
}

// tiles launches a product of product.cuh. t is its type, fields are what it is made of, parameters all.
func (b *planner) tiles(stem, t, fields string, batch, m, n, k int, params []string, args []place) error {
	for _, x := range [...]int{batch, m, n, k} {
		if x > math.MaxInt32 {
			return fmt.Errorf("a product of %d times %dx%dx%d: one extent is too large for a card without the library", batch, m, k, n)
		}
	}
	const tile, worth = 64, 256 // of k, for a part
	grid := blocks(m, tile) * blocks(n, tile)
	s := 1
	if grid*batch < enough/2 && k >= 2*worth {
		s = min((enough+grid*batch-1)/(grid*batch), k/worth, 64)
	}
	if s == 1 {
		text := fmt.Sprintf("%s    product<%s, 1>({%s}, nullptr);\n}\n", waiting(params...), t, fields)
		return b.grid(b.kernel(stem, text, "product"), grid, batch, args)
	}
	params, args = append(params, "float *parts"), append(args, b.temporary(s*batch*m*n))
	text := func(function string) string {
		return fmt.Sprintf("%s    %s<%s, %d>({%s}, parts);\n}\n", waiting(params...), function, t, s, fields)
	}
	if err := b.grid(b.kernel(stem, text("product"), "product"), grid, batch*s, args); err != nil {
		return err
	}
	b.launch(b.kernel("finish", text("finish"), "product"), blocks(batch*m*n, threads), args...)
	return nil
}

func (b *planner) grid(kernel, blocks, planes int, args []place) error {
	if planes > maxPlanes {
		return fmt.Errorf("a product of %d matrices: a card without the library takes %d", planes, maxPlanes)
	}
	b.add(launch{kernel: kernel, blocks: blocks, planes: planes, args: args})
	return nil
}

// convolution is a convolution or a gradient of one: the operands are all contiguous.
type convolution struct {
	op           ir.Op
	window       ir.Window
	x, w, y      place  // dx, dw, dy in its gradients
	xs, ws, ys   [4]int // in the order [N,C,H,W], and [O,C/G,KH,KW]
	xt, wt, yt   ir.DType
	bias         place
	biasType     ir.DType
	biased, relu bool
	mask, sums   place // of and for dy
	masked       bool
	summed       bool
}

// newConvolution is the convolution of a step.
func newConvolution(s *ir.Step) (c convolution, err error) {
	if err := contiguous(slices.Concat(s.In, s.Out[:1])...); err != nil {
		return c, err
	}
	c = convolution{op: s.Op, relu: s.Epilogue.Relu}
	var x, w, y ir.Operand
	switch op := s.Op.(type) {
	case ir.Conv2d:
		x, w, y, c.window = s.In[0], s.In[1], s.Out[0], op.Conv
	case ir.Conv2dGradX:
		x, w, y, c.window = s.Out[0], s.In[0], s.In[1], op.Conv
	case ir.Conv2dGradW:
		x, w, y, c.window = s.In[0], s.Out[0], s.In[1], op.Conv
	}
	c.x, c.w, c.y = at(x), at(w), at(y)
	c.xs, c.ws, c.ys = c.window.ToNCHW([4]int(x.Shape)), c.window.ToNCHW([4]int(w.Shape)), c.window.ToNCHW([4]int(y.Shape))
	c.xt, c.wt, c.yt = x.DType, w.DType, y.DType
	if i := s.Epilogue.Bias; i != 0 {
		c.bias, c.biasType, c.biased = at(s.In[i]), s.In[i].DType, true
	}
	if i := s.Epilogue.Mask; i != 0 {
		c.mask, c.masked = at(s.In[i]), true
	}
	if s.Epilogue.Sums {
		c.sums, c.summed = at(s.Out[1]), true
	}
	return c, nil
}

// plainConv makes a convolution by the library, or else by a kernel of our own, and what there is of mask and sums by steps of their own.
func (b *planner) plainConv(s *ir.Step) error {
	plain := s.Plain()
	for i := range plain {
		s := &plain[i]
		if !isConv(s.Op) {
			if err := b.build(s); err != nil {
				return err
			}
			continue
		}
		c, err := newConvolution(s)
		if err != nil {
			return err
		}
		if s.Out[0].Shape.Size() == 0 {
			continue
		}
		done, err := b.convolution(b, c)
		if err == nil && !done {
			err = b.ownConv(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isConv(op ir.Op) bool {
	switch op.(type) {
	case ir.Conv2d, ir.Conv2dGradX, ir.Conv2dGradW:
		return true
	}
	return false
}

// geometry is the convolution's Geometry of product.cuh.
func (c convolution) geometry() string {
	w, x, y := c.window, c.xs, c.ys
	return fmt.Sprintf("Geometry<%d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %t>", x[0], x[1], x[2], x[3], y[1], y[2], y[3], w.Groups,
		w.Kernel[0], w.Kernel[1], w.Stride[0], w.Stride[1], w.Padding[0], w.Padding[1], w.Dilation[0], w.Dilation[1], w.ChannelsLast)
}

func (b *planner) ownConv(c convolution) error {
	w, x, y := c.window, c.xs, c.ys
	g, geometry := w.Groups, c.geometry()
	ci, co, area := x[1]/g, y[1]/g, w.Kernel[0]*w.Kernel[1]
	xt, wt, yt := ctype(c.xt), ctype(c.wt), ctype(c.yt)
	switch c.op.(type) {
	case ir.Conv2dGradX:
		return b.tiles("convGradX", fmt.Sprintf("ConvGradX<%s, %s, %s, %s>", geometry, wt, yt, xt), "w, dy, out", g, ci, x[0]*x[2]*x[3], co*area,
			[]string{"const " + wt + " *w", "const " + yt + " *dy", xt + " *out"}, []place{c.w, c.y, c.x})
	case ir.Conv2dGradW:
		return b.tiles("convGradW", fmt.Sprintf("ConvGradW<%s, %s, %s, %s>", geometry, xt, yt, wt), "x, dy, out", g, co, ci*area, x[0]*y[2]*y[3],
			[]string{"const " + xt + " *x", "const " + yt + " *dy", wt + " *out"}, []place{c.x, c.y, c.w})
	}
	bt := ctype(c.biasType)
	params, args, bias := []string{"const " + xt + " *x", "const " + wt + " *w"}, []place{c.x, c.w}, "nullptr"
	if c.biased {
		params, args, bias = append(params, "const "+bt+" *bias"), append(args, c.bias), "bias"
	}
	return b.tiles("conv", fmt.Sprintf("Conv<%s, %t, %t, %s, %s, %s, %s>", geometry, c.biased, c.relu, xt, wt, bt, yt), fmt.Sprintf("x, w, %s, out", bias),
		g, co, x[0]*y[2]*y[3], ci*area, append(params, yt+" *out"), append(args, c.y))
}
