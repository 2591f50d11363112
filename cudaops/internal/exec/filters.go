package exec

import (
	"fmt"
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// convWays lists how a convolution can be carried out on a card of that major version. The first always can be.
func (b *planner) convWays(s *ir.Step, major int) []way {
	const tensorCores = 8 // the first version whose tensor cores know TF32
	list := []way{{name: "plain", plan: (*planner).plainConv}}
	c, err := newConvolution(s)
	if err != nil || s.Out[0].Shape.Size() == 0 || !b.program.Target.TF32 || !c.window.ChannelsLast {
		return list // and planning it says what is wrong
	}
	if c.xt != ir.F32 || c.wt != ir.F32 || c.yt != ir.F32 || c.biased && c.biasType != ir.F32 {
		return list
	}
	if c.single() {
		list = append(list, wholeConv("single channel", (*planner).single))
	}
	if t, ok := c.haloTile(); ok && major == wgmma {
		list = append(list, wholeConv(t.String(), func(b *planner, c convolution) error { return b.halo(c, t) }))
	}
	if t, ok := c.filterTile(); ok && major >= tensorCores && !c.masked && !c.summed {
		list = append(list, wholeConv(t.String(), func(b *planner, c convolution) error { return b.filterGradient(c, t) }))
		if major == wgmma && t.turns(c.window.Kernel) {
			list = append(list, wholeConv(t.String()+", turned", func(b *planner, c convolution) error { return b.turnedGradient(c, t) }))
		}
	}
	return list
}

// wholeConv is a way that does a convolution with its epilogue at once.
func wholeConv(name string, plan func(b *planner, c convolution) error) way {
	return way{name: name, plan: func(b *planner, s *ir.Step) error {
		c, err := newConvolution(s)
		if err != nil {
			return err
		}
		return plan(b, c)
	}}
}

// single reports whether kernels for images of one channel take a convolution: a thread has the filters of four channels, or sums for them, in
// registers.
func (c convolution) single() bool {
	const most = 25 // numbers of a filter
	if _, ok := c.op.(ir.Conv2dGradX); ok || c.xs[1] != 1 || c.ys[1]%lanes != 0 || c.ys[1] > lanes*threads || c.ws[2]*c.ws[3] > most {
		return false
	}
	return c.y.even(wordBytes) && (!c.masked || c.mask.even(wordBytes))
}

// single plans a convolution of images of one channel, or its gradient by the filters.
func (b *planner) single(c convolution) error {
	const least = 4 // pixels that are worth a thread
	beside, rows, wide := threads/(c.ys[1]/lanes), c.ys[0]*c.ys[2], c.ys[3]
	// Few images are cut finer, so that there is something to do for all of the card.
	segment := blocks(wide, max(1, min(wide/least, enough*beside/max(rows, 1))))
	all := rows * blocks(wide, segment)
	if _, ok := c.op.(ir.Conv2d); ok {
		params, args, bias := []string{"const float *x", "const float *w"}, []place{c.x, c.w}, "nullptr"
		if c.biased {
			params, args, bias = append(params, "const float *bias"), append(args, c.bias), "bias"
		}
		text := fmt.Sprintf("%s {\n    Single<%s, %d>::forward<%t, %t>(x, w, %s, y);\n}\n", entry(append(params, "float *y")...), c.geometry(), segment, c.biased, c.relu, bias)
		return b.grid(b.kernel("conv", text, "single"), blocks(all, beside), 1, append(args, c.y))
	}
	s, n, m := min(enough, blocks(all, beside)), c.ws[0]*c.ws[2]*c.ws[3], 0
	params, args, mask := []string{"const float *x", "const float *dy"}, []place{c.x, c.y}, "nullptr"
	if c.masked {
		params, args, mask = append(params, "const float *mask"), append(args, c.mask), "mask"
	}
	if c.summed {
		m = c.ws[0]
	}
	parts := b.temporary(s * (n + m))
	text := fmt.Sprintf("%s {\n    Single<%s, %d>::gradient<%d, %t, %t>(x, dy, %s, parts);\n}\n", entry(append(params, "float *parts")...), c.geometry(), segment, s, c.masked, c.summed, mask)
	b.launch(b.kernel("convGradW", text, "single"), s, append(args, parts)...)
	b.addParts(parts, s, n, c.w, m, c.sums)
	return nil
}

// addParts adds up s parts in order, of n numbers for out and m for more.
func (b *planner) addParts(parts place, s, n int, out place, m int, more place) {
	params, args, second := []string{"const float *parts", "float *out"}, []place{parts, out}, "nullptr"
	if m > 0 {
		params, args, second = append(params, "float *more"), append(args, more), "more"
	}
	side := 32
	for side > lanes*2 && blocks(n+m, side) < enough/4 { // few numbers: more threads for each
		side /= 2
	}
	text := fmt.Sprintf("%s {\n    addParts<%d, %d, %d, %d>(parts, out, %s);\n}\n", entry(params...), side, s, n, m, second)
	b.launch(b.kernel("addParts", text, "product"), blocks(n+m, side), args...)
}

// filterTile is how a gradient by filters is cut for the tensor cores; see FilterGradient in filters.cuh.
type filterTile struct {
	rows16  int // of 16 of dy's channels a block
	segment int // pixels of a row
	rows    int // of a chunk
	parts   int // of the sums
}

func (t filterTile) String() string {
	return fmt.Sprintf("filters %d, pixels %dx%d, %d parts", t.rows16*16, t.rows, t.segment, t.parts)
}

// filterTile cuts a gradient by filters; ok is false where the tensor cores' kernel does not take it.
func (c convolution) filterTile() (t filterTile, ok bool) {
	const (
		large     = 132 // blocks that a large card runs at once
		sums      = 36  // of 16 x 8 numbers a warp: what its registers hold
		blockWide = 32  // of x's channels
	)
	w := c.window
	if _, gradW := c.op.(ir.Conv2dGradW); !gradW || w.Groups > 1 || w.Stride != [2]int{1, 1} || w.Dilation != [2]int{1, 1} || c.xs[1]%blockWide != 0 {
		return t, false
	}
	if !c.x.even(wordBytes) || !c.y.even(wordBytes) || max(c.xs[0]*c.xs[2], c.ys[0]*c.ys[2]) > math.MaxInt32/64 {
		return t, false
	}
	for t.rows16 = 4; t.rows16*w.Kernel[0]*w.Kernel[1] > sums || c.ys[1]%(16*t.rows16) != 0; t.rows16 /= 2 {
		if t.rows16 == 1 {
			return t, false
		}
	}
	// The segment that leaves the fewest pixels empty, the longest of those.
	least := math.MaxInt
	for segment := 32; segment >= 8; segment -= 8 {
		if all := blocks(c.ys[3], segment) * segment; all < least {
			least, t.segment = all, segment
		}
	}
	tiles := c.ys[1] / (16 * t.rows16) * c.xs[1] / blockWide
	t.parts = max(1, large/tiles)
	// Few images are cut, so that there is something to do for all blocks.
	strips := c.ys[0] * blocks(c.ys[3], t.segment)
	chunks := max(1, min(t.parts/strips, c.ys[2]/4))
	t.rows = blocks(c.ys[2], chunks)
	t.parts = min(t.parts, strips*blocks(c.ys[2], t.rows))
	return t, true
}

// filterGradient plans a gradient by filters on the tensor cores.
func (b *planner) filterGradient(c convolution, t filterTile) error {
	const depth = 4 // pairs of rows under way, and the one in work
	w, out, gap := c.window, 16*t.rows16, 8
	xPair := 2 * (t.segment + w.Kernel[1] - 1) * (32 + gap)
	yPair := 2 * t.segment * (out + gap)
	shared := max((w.Kernel[0]/2+depth)*xPair+depth*yPair, w.Kernel[0]*w.Kernel[1]*t.rows16*4*threads/2)
	text := fmt.Sprintf("%s {\n    FilterGradient<%s, %d, %d, %d, %d, %d>::run(x, dy, parts, blockMemory());\n}\n",
		entry("const float *x", "const float *dy", "float *parts"), c.geometry(), t.rows16, t.segment, t.rows, t.parts, depth)
	b.gradientParts(c, t, b.kernel("convGradW", text, "filters"), shared)
	return nil
}

// gradientParts launches a kernel for the parts of a gradient by filters, with so many words of shared memory, and one that adds them up.
func (b *planner) gradientParts(c convolution, t filterTile, kernel, shared int) {
	n := c.ws[0] * c.ws[1] * c.ws[2] * c.ws[3]
	parts := b.temporary(t.parts * n)
	b.add(launch{
		kernel: kernel, args: []place{c.x, c.y, parts}, shared: shared * wordBytes,
		blocks: t.parts, planes: c.ys[1] / (16 * t.rows16) * c.xs[1] / 32,
	})
	b.addParts(parts, t.parts, n, c.w, 0, place{})
}

// turns reports whether the kernel of turned.cuh takes a gradient that is cut like that: its groups have the sums of all taps in registers.
func (t filterTile) turns(kernel [2]int) bool { return t.rows16 == 4 && kernel[0]*kernel[1] <= 9 }

// turnedGradient plans a gradient by filters on the tensor cores of Hopper.
func (b *planner) turnedGradient(c convolution, t filterTile) error {
	const depth = 3 // pairs of rows under way, and the one in work
	w := c.window
	pairs := depth * 2 * ((t.segment+w.Kernel[1]-1)*32 + t.segment*(64+8))
	shared := max(pairs+(w.Kernel[0]/2+2)*2*w.Kernel[1]*t.segment*(32+lanes), w.Kernel[0]*w.Kernel[1]*16*threads/2)
	text := fmt.Sprintf("%s {\n    TurnedGradient<%s, %d, %d, %d, %d>::run(x, dy, parts, blockMemory());\n}\n",
		entry("const float *x", "const float *dy", "float *parts"), c.geometry(), t.segment, t.rows, t.parts, depth)
	b.gradientParts(c, t, b.kernel("convGradW", text, "turned"), shared)
	return nil
}
