package exec

import (
	"fmt"
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// wgmma is the one major version of compute capability that has these instructions.
const wgmma = 9

// haloTile is how a convolution, or its gradient by x, is cut for the tensor cores of Hopper; see Halo in halo.cuh.
type haloTile struct {
	columns  int // channels of the output a block
	rows     int
	segment  int // pixels of a row
	channels int // of the input at a time
	depth    int // stages under way, and the one in work
	blocks   int
}

func (t haloTile) String() string {
	return fmt.Sprintf("%d channels, pixels %dx%d, %d by %d", t.columns, t.rows, t.segment, t.depth, t.channels)
}

// shared is how many bytes of shared memory a block takes for so many taps and channels of input.
func (t haloTile) shared(kernel [2]int, in int) int {
	return wordBytes * ((kernel[0]*kernel[1]*t.columns+lanes)*in + 2*t.depth*t.channels*t.plane(kernel))
}

// plane is how many pixels of a stage have room.
func (t haloTile) plane(kernel [2]int) int {
	wide := t.segment + kernel[1] - 1
	pixels := max(t.turns(kernel)*64+(kernel[0]-1)*wide+kernel[1]-1, (t.rows+kernel[0]-1)*wide)
	return (pixels+3)/8*8 + 4
}

// turns is how often 64 pixels of output are made.
func (t haloTile) turns(kernel [2]int) int {
	return blocks(t.rows*(t.segment+kernel[1]-1)-kernel[1]+1, 64)
}

// haloTile cuts a convolution or a gradient by x; ok is false where the kernel does not take it.
func (c convolution) haloTile() (best haloTile, ok bool) {
	const (
		large   = 132 // blocks that a large card runs at once
		sums    = 160 // a thread
		longest = 64  // segment
	)
	w, in, out := c.window, c.xs, c.ys
	switch c.op.(type) {
	case ir.Conv2d:
	case ir.Conv2dGradX:
		in, out = out, in
		if w.Padding[0] >= w.Kernel[0] || w.Padding[1] >= w.Kernel[1] {
			return best, false
		}
	default:
		return best, false
	}
	if w.Groups > 1 || w.Stride != [2]int{1, 1} || w.Dilation != [2]int{1, 1} || in[1]%16 != 0 || out[1]%32 != 0 {
		return best, false
	}
	if !c.x.even(wordBytes) || !c.y.even(wordBytes) || !c.w.even(wordBytes) || c.biased && !c.bias.even(wordBytes) || max(in[0]*in[2], out[0]*out[2]) > math.MaxInt32/64 {
		return best, false
	}
	t := haloTile{segment: blocks(out[3], blocks(out[3], longest))}
	least := math.MaxInt
	for _, t.columns = range [...]int{64, 32} {
		if out[1]%t.columns != 0 {
			continue
		}
		for t.rows = 1; t.rows <= out[2] && t.turns(w.Kernel)*t.columns/2 <= sums; t.rows++ {
			if !t.fits(w.Kernel, in[1]) {
				break
			}
			tiles, across := out[0]*blocks(out[2], t.rows)*blocks(out[3], t.segment), out[1]/t.columns
			most := max(1, large/across)
			// How long the busiest group works, about: the tensor cores read pixels as long as they multiply 16 channels, and a tile begins and ends.
			if time := blocks(tiles, 2*most) * blocks(across, large) * (t.turns(w.Kernel)*(t.columns+16) + 40); time < least {
				best, least, ok = t, time, true
				best.blocks = min(blocks(tiles, 2), most)
			}
		}
	}
	return best, ok
}

// fits chooses the stages of a tile; it is false where a block has no memory for three.
func (t *haloTile) fits(kernel [2]int, in int) bool {
	const memory = 227 << 10
	for _, t.channels = range [...]int{16, 8} {
		for t.depth = 4; t.depth >= 3; t.depth-- {
			if t.shared(kernel, in) <= memory {
				return true
			}
		}
	}
	return false
}

// halo plans a convolution, or its gradient by x, on the tensor cores of Hopper.
func (b *planner) halo(c convolution, t haloTile) error {
	_, gradX := c.op.(ir.Conv2dGradX)
	stem, in, out := "conv", c.xs[1], c.ys[1]
	params, args, bias := []string{"const float *x", "const float *w"}, []place{c.x, c.w}, "nullptr"
	result := c.y
	if gradX {
		stem, in, out = "convGradX", out, in
		args[0], result = c.y, c.x
	}
	if c.biased {
		params, args, bias = append(params, "const float *bias"), append(args, c.bias), "bias"
	}
	text := fmt.Sprintf("%s {\n    Halo<%s, %t, %d, %d, %d, %d, %d, %d, %t, %t>::run(x, w, %s, y, blockMemory());\n}\n",
		entry(append(params, "float *y")...), c.geometry(), gradX, t.columns, t.rows, t.segment, t.channels, t.depth, t.blocks, c.biased, c.relu, bias)
	b.add(launch{
		kernel: b.kernel(stem, text, "halo"), args: append(args, result), shared: t.shared(c.window.Kernel, in),
		blocks: t.blocks, planes: out / t.columns,
	})
	return nil
}
