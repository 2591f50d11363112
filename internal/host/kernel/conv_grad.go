package kernel

import "math"

// Conv2dGradX is a plan for the gradient of a convolution by its input: w, dy -> dx, for the shape of the forward
// convolution.
//
// With stride 1 it is a convolution itself, of dy by the weights turned by 180 degrees. Else it is the transposed
// weights times dy, per image, whose rows are then added to where their taps came from.
type Conv2dGradX struct {
	pool *Pool
	g    *convGeometry

	conv   *Conv2d // stride 1
	turned []turnedWeights

	block   blocking // else
	kBlocks int
	ws      []gradXWorker
	strided []stridedPanels

	packBody, body func(worker, part int)

	dx, dy []float32
}

type gradXWorker struct{ dy stridedPanels }

// NewConv2dGradX plans gradients of convolutions of the shape.
func NewConv2dGradX(pool *Pool, shape Conv2dShape) *Conv2dGradX {
	g := newGeometry(shape)
	k := pool.kern
	c := &Conv2dGradX{pool: pool, g: g}
	pad := [2]int{g.Dilation[0]*(g.Kernel[0]-1) - g.Padding[0], g.Dilation[1]*(g.Kernel[1]-1) - g.Padding[1]}
	if g.Stride == [2]int{1, 1} && pad[0] >= 0 && pad[1] >= 0 {
		c.conv = NewConv2d(pool, Conv2dShape{
			N: g.N, C: g.Out, H: g.oh, W: g.ow, Out: g.C,
			Kernel: g.Kernel, Stride: g.Stride, Padding: pad, Dilation: g.Dilation, Groups: g.Groups,
		})
		c.turned = make([]turnedWeights, g.Groups)
		for i := range c.turned {
			c.turned[i] = turnedWeights{area: g.Kernel[0] * g.Kernel[1], ck: g.ck}
		}
		c.conv.weights = func(group, _ int) panels { return &c.turned[group] }
		return c
	}
	c.block = newBlocking(k, g.taps, g.places, g.ok)
	c.kBlocks = ceilDiv(g.ok, c.block.kc)
	pool.reserve(c.block.scratch()+g.taps*g.places, g.Groups*c.kBlocks*c.block.packedSize(g.taps))
	c.strided = make([]stridedPanels, g.Groups*c.kBlocks)
	for i := range c.strided {
		c.strided[i] = stridedPanels{kern: k, across: 1, along: g.taps}
	}
	c.ws = make([]gradXWorker, pool.threads)
	for i := range c.ws {
		c.ws[i].dy = stridedPanels{kern: k, across: 1, along: g.places}
	}
	c.packBody, c.body = c.pack, c.task
	return c
}

// Run computes dx [N,C,H,W] from w and dy [N,Out,OH,OW].
func (c *Conv2dGradX) Run(dx, w, dy []float32) {
	g := c.g
	checkLen("weights of a convolution", w, g.Out*g.taps)
	if c.conv != nil {
		for i := range c.turned {
			c.turned[i].w = w[i*g.ok*g.taps:][:g.ok*g.taps]
		}
		c.conv.run(dx, dy, nil, false)
		for i := range c.turned {
			c.turned[i].w = nil
		}
		return
	}
	checkLen("gradient of a convolution's input", dx, g.N*g.Groups*g.inSize)
	checkLen("gradient of a convolution's output", dy, g.N*g.Groups*g.ySize)
	for i := range c.strided {
		c.strided[i].data = w[i/c.kBlocks*g.ok*g.taps:]
	}
	c.dx, c.dy = dx, dy
	c.pool.Run(g.Groups*c.kBlocks, c.packBody)
	c.pool.Run(g.N*g.Groups, c.body)
	c.dx, c.dy = nil, nil
	for i := range c.strided {
		c.strided[i].data = nil
	}
}

func (c *Conv2dGradX) packed(group int) []float32 {
	size := c.kBlocks * c.block.packedSize(c.g.taps)
	return c.pool.shared[group*size:][:size]
}

func (c *Conv2dGradX) pack(_, part int) {
	group, block := part/c.kBlocks, part%c.kBlocks
	c.block.packAll(c.packed(group), c.g.taps, c.g.ok, block, &c.strided[part])
}

func (c *Conv2dGradX) task(worker, i int) {
	g, w := c.g, &c.ws[worker]
	scratch := c.pool.scratch[worker]
	own := c.block.scratch()
	patches := scratch[own:][:g.taps*g.places]
	w.dy.data = c.dy[i*g.ySize:][:g.ySize]
	c.block.run(scratch[:own], rect{m1: g.taps, n1: g.places, k1: g.ok}, nil, &w.dy, c.packed(i%g.Groups), patches, g.places, &Epilogue{})
	w.dy.data = nil
	g.addPatches(c.dx[i*g.inSize:][:g.inSize], patches)
}

// addPatches sums the patches [taps][places] into dx, one group of an image, which it clears first.
func (g *convGeometry) addPatches(dx, patches []float32) {
	clear(dx)
	row := 0
	for c := range g.ck {
		plane := dx[c*g.H*g.W:][:g.H*g.W]
		for ky := range g.Kernel[0] {
			for kx := range g.Kernel[1] {
				p := patches[row*g.places:][:g.places]
				row++
				left := kx*g.Dilation[1] - g.Padding[1]
				// The outputs x0 <= x < x1 have this tap inside the image.
				x0 := max(0, ceilDiv(-left, g.Stride[1]))
				x1 := min(g.ow, ceilDiv(g.W-left, g.Stride[1]))
				for oy := range g.oh {
					y := oy*g.Stride[0] + ky*g.Dilation[0] - g.Padding[0]
					if y < 0 || y >= g.H {
						continue
					}
					out := plane[y*g.W:][:g.W]
					for x := x0; x < x1; x++ {
						out[x*g.Stride[1]+left] += p[oy*g.ow+x]
					}
				}
			}
		}
	}
}

// turnedWeights are the panels of a group's weights for the gradient by the input: row c, column (o, tap) is
// w[o][c][last tap - tap].
type turnedWeights struct {
	w        []float32
	area, ck int
}

func (t *turnedWeights) pack(dst []float32, width, first, count, k0, kn int) {
	o, tap := k0/t.area, k0%t.area
	for p := range kn {
		out := dst[p*width:][:count]
		at := (o*t.ck+first)*t.area + t.area - 1 - tap
		for i := range out {
			out[i] = t.w[at]
			at += t.area
		}
		if tap++; tap == t.area {
			o, tap = o+1, 0
		}
	}
}

// Conv2dGradW is a plan for the gradient of a convolution by its weights: x, dy -> dw. Per image and group it is dy times
// the transposed matrix of patches. The images are summed in runs whose number depends on the shape only, and the
// runs are added up in order.
type Conv2dGradW struct {
	pool         *Pool
	g            *convGeometry
	block        blocking
	runs, gm, gn int
	ws           []gradWWorker

	body, sumBody func(worker, part int)

	dw, x, dy []float32
}

type gradWWorker struct {
	dy   stridedPanels
	taps tapPanels
}

// Partial sums of weight gradients: at most maxRuns of them, and at most maxPartial floats in all.
const (
	maxRuns    = 16
	maxPartial = 1 << 22
	sumPart    = 4096 // floats that one task adds up
)

// NewConv2dGradW plans gradients of convolutions of the shape.
func NewConv2dGradW(pool *Pool, shape Conv2dShape) *Conv2dGradW {
	g := newGeometry(shape)
	k := pool.kern
	c := &Conv2dGradW{pool: pool, g: g, ws: make([]gradWWorker, pool.threads)}
	c.runs = max(1, min(g.N, maxRuns, maxPartial/(g.Out*g.taps)))
	c.gm, c.gn = grid(k, pool.threads, g.ok, g.taps, g.places*ceilDiv(g.N, c.runs), g.Groups*c.runs, math.MaxInt)
	c.block = newBlocking(k, ceilDiv(ceilDiv(g.ok, k.mr), c.gm)*k.mr, ceilDiv(ceilDiv(g.taps, k.nr), c.gn)*k.nr, g.places)
	if g.ow < targetKC {
		c.block.kc = evenly(g.places, targetKC, g.ow) // whole rows: their parts are packed eight at a time
	}
	partial := 0
	if c.runs > 1 {
		partial = c.runs * g.Out * g.taps
	}
	pool.reserve(c.block.scratch()+g.paddedSize(), partial)
	for i := range c.ws {
		c.ws[i] = gradWWorker{dy: stridedPanels{kern: k, across: g.places, along: 1}, taps: tapPanels{kern: k, g: g}}
	}
	c.body, c.sumBody = c.task, c.sum
	return c
}

// Run computes dw [Out,C/Groups,KH,KW] from x [N,C,H,W] and dy [N,Out,OH,OW].
func (c *Conv2dGradW) Run(dw, x, dy []float32) {
	g := c.g
	checkLen("gradient of a convolution's weights", dw, g.Out*g.taps)
	checkLen("input of a convolution", x, g.N*g.Groups*g.inSize)
	checkLen("gradient of a convolution's output", dy, g.N*g.Groups*g.ySize)
	if g.N == 0 {
		clear(dw)
		return
	}
	c.dw, c.x, c.dy = dw, x, dy
	c.pool.Run(c.runs*g.Groups*c.gm*c.gn, c.body)
	if c.runs > 1 {
		c.pool.Run(ceilDiv(len(dw), sumPart), c.sumBody)
	}
	c.dw, c.x, c.dy = nil, nil, nil
}

// task sums one run of images for one rectangle of one group of dw.
func (c *Conv2dGradW) task(worker, part int) {
	g, k, w := c.g, c.pool.kern, &c.ws[worker]
	gj := part % c.gn
	gi := part / c.gn % c.gm
	group := part / (c.gn * c.gm) % g.Groups
	run := part / (c.gn * c.gm * g.Groups)

	r := rect{k1: g.places}
	r.m0, r.m1 = share(g.ok, k.mr, c.gm, gi)
	r.n0, r.n1 = share(g.taps, k.nr, c.gn, gj)
	dw := c.dw
	if c.runs > 1 {
		dw = c.pool.shared[run*g.Out*g.taps:]
	}
	dw = dw[group*g.ok*g.taps:][:g.ok*g.taps]
	scratch := c.pool.scratch[worker]
	own := c.block.scratch()
	epi := Epilogue{}
	first, last := share(g.N, 1, c.runs, run)
	for n := first; n < last; n++ {
		i := n*g.Groups + group
		w.taps.image = g.image(scratch[own:], c.x, i)
		w.dy.data = c.dy[i*g.ySize:][:g.ySize]
		c.block.run(scratch[:own], r, &w.dy, &w.taps, nil, dw, g.taps, &epi)
		epi.Accumulate = true
	}
	w.taps.image, w.dy.data = nil, nil
}

// sum adds the runs up for one part of dw.
func (c *Conv2dGradW) sum(_, part int) {
	size := len(c.dw)
	lo := part * sumPart
	dw := c.dw[lo:min(lo+sumPart, size)]
	copy(dw, c.pool.shared[lo:])
	for i := 1; i < c.runs; i++ {
		c.pool.kern.vector.Add.VV(dw, dw, c.pool.shared[i*size+lo:])
	}
}

// tapPanels are the panels of the transposed matrix of patches, places x taps, for the product with dy.
type tapPanels struct {
	kern  *kernels
	g     *convGeometry
	image []float32
}

func (t *tapPanels) pack(dst []float32, width, first, count, k0, kn int) {
	g := t.g
	if t.kern.gatherRows == nil {
		for p, place := range g.placeAt[k0:][:kn] {
			out := dst[p*width:][:count]
			for i := range out {
				out[i] = t.image[place+g.tapAt[first+i]]
			}
		}
		return
	}
	if g.Stride[1] != 1 {
		t.kern.gatherRows(&dst[0], &t.image[0], &g.placeAt[k0], kn, &g.tapAt[first])
		return
	}
	// Runs of places in one row of the image: eight taps of eight places at a time, the rest gathered.
	for p := 0; p < kn; {
		place := k0 + p
		run := min(kn-p, g.ow-place%g.ow)
		if blocks := run / 8; blocks > 0 {
			for i := 0; i < count; i += 8 {
				t.kern.transpose8(&dst[p*width+i], width, &t.image[g.placeAt[place]], &g.tapAtInt[first+i], blocks)
			}
		}
		if rest := run % 8; rest > 0 {
			q := p + run - rest
			t.kern.gatherRows(&dst[q*width], &t.image[0], &g.placeAt[k0+q], rest, &g.tapAt[first])
		}
		p += run
	}
}
