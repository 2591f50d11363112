package exec

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// convKind is what a convCase computes.
type convKind string

const (
	forward   convKind = "forward" // with bias and ReLU
	byX       convKind = "gradient by x"
	byW       convKind = "gradient"
	byWMasked convKind = "masked gradient" // by the filters too, with relu's mask and the sums for a bias
)

// convCase is a convolution with channels last, or a gradient of one.
type convCase struct {
	kind          convKind
	n, c, h, w, o int
	kernel        [2]int
	padding       [2]int
	stride        [2]int
}

func (c convCase) String() string {
	return fmt.Sprintf("%s of %dx%dx%dx%d by %d %v padding %v stride %v", c.kind, c.n, c.h, c.w, c.c, c.o, c.kernel, c.padding, c.stride)
}

// draw gives the program, and the slots of what it reads and writes.
func (c convCase) draw(s *sketch) (p *ir.Program, in, out []*ir.Slot) {
	w := ir.Window{Kernel: c.kernel, Stride: c.stride, Padding: c.padding, Dilation: [2]int{1, 1}, Groups: 1, ChannelsLast: true}
	read := func(dims ...int) *ir.Value {
		slot := s.slot(ir.Input, ir.F32, dims...)
		in = append(in, slot)
		return s.Read(slot)
	}
	store := func(v *ir.Value) {
		out = append(out, s.slot(ir.Output, ir.F32, v.Shape...))
		s.Store(out[len(out)-1], v)
	}
	x, y := read(c.n, c.h, c.w, c.c), []int{c.n, w.Out(0, c.h), w.Out(1, c.w), c.o}
	switch c.kind {
	case byWMasked:
		dy := s.Add(ir.SoftmaxGrad{}, nil, read(y...), read(y...)) // a step that is no loop
		dy = s.Select(s.Map(ir.Le, read(y...), s.Const(0)), s.Const(0), dy)
		store(s.Add(ir.Conv2dGradW{Conv: w}, nil, x, dy))
		store(s.Sum(dy, 0, 1, 2))
	case byX:
		k := read(c.o, c.kernel[0], c.kernel[1], c.c)
		store(s.Add(ir.Conv2dGradX{Conv: w, In: [4]int(x.Shape)}, nil, k, read(y...)))
	case byW:
		store(s.Add(ir.Conv2dGradW{Conv: w}, nil, x, read(y...)))
	case forward:
		k := read(c.o, c.kernel[0], c.kernel[1], c.c)
		store(s.Map(ir.Relu, s.Plus(s.Add(ir.Conv2d{Conv: w}, nil, x, k), read(c.o))))
	}
	p, err := ir.Compile("convolution", s.size, ir.Target{TF32: true}, s.parts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return p, in, out
}

// Every way to make a convolution gives its numbers, and the same bits again. Operands are numbers of TF32, so that rounding them costs nothing.
func TestConvWays(t *testing.T) {
	openCard(t)
	rng := rand.New(rand.NewPCG(1, uint64(rand.Uint32())))
	square := func(kind convKind, n, c, size, o, kernel, padding int) convCase {
		return convCase{kind, n, c, size, size, o, [2]int{kernel, kernel}, [2]int{padding, padding}, [2]int{1, 1}}
	}
	cases := []convCase{
		square(forward, 3, 1, 28, 32, 3, 0), square(byW, 3, 1, 28, 32, 3, 0), square(byW, 70, 1, 28, 32, 3, 0),
		square(forward, 2, 1, 9, 12, 5, 2), square(byW, 2, 1, 9, 12, 5, 2),
		{byW, 2, 1, 11, 13, 8, [2]int{3, 2}, [2]int{1, 1}, [2]int{2, 3}}, {forward, 2, 1, 11, 13, 8, [2]int{3, 2}, [2]int{1, 1}, [2]int{2, 3}},
		square(byW, 5, 32, 26, 64, 3, 0), square(byW, 70, 32, 12, 64, 3, 0), square(byW, 2, 64, 14, 128, 3, 1), square(byW, 3, 32, 9, 16, 5, 2),
		square(byW, 1, 32, 7, 32, 1, 0), square(byW, 2, 96, 15, 192, 3, 1),
		{byWMasked, 3, 1, 12, 14, 32, [2]int{3, 3}, [2]int{}, [2]int{1, 1}}, {byWMasked, 70, 1, 9, 9, 12, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}},
		{byW, 3, 32, 10, 7, 32, [2]int{3, 2}, [2]int{0, 1}, [2]int{1, 1}}, {byW, 3, 32, 5, 40, 16, [2]int{2, 3}, [2]int{1, 0}, [2]int{1, 1}},
		square(forward, 3, 32, 26, 64, 3, 0), square(byX, 3, 32, 26, 64, 3, 0), {forward, 600, 32, 3, 5, 64, [2]int{3, 3}, [2]int{}, [2]int{1, 1}}, {byX, 600, 32, 3, 5, 64, [2]int{3, 3}, [2]int{}, [2]int{1, 1}},
		square(forward, 2, 64, 14, 64, 3, 1), square(byX, 2, 64, 14, 64, 3, 1), square(forward, 2, 16, 9, 32, 5, 2), square(byX, 2, 32, 9, 16, 5, 2),
		square(forward, 1, 64, 70, 96, 1, 0), square(byX, 1, 32, 70, 16, 1, 0),
		{forward, 3, 32, 10, 7, 32, [2]int{3, 2}, [2]int{0, 1}, [2]int{1, 1}}, {byX, 3, 32, 5, 90, 16, [2]int{2, 3}, [2]int{1, 0}, [2]int{1, 1}},
	}
	for _, c := range cases {
		t.Run(c.String(), func(t *testing.T) { c.test(t, rng) })
	}
}

// convWaysOf are all that there are for the convolution, which is the program's last step but for copies.
func convWaysOf(p *ir.Program) []way {
	b := &planner{plan: &plan{program: p}}
	i := slices.IndexFunc(p.Steps, func(s ir.Step) bool { return isConv(s.Op) })
	return b.ways(&p.Steps[i], hopper)
}

func (c convCase) test(t *testing.T, rng *rand.Rand) {
	s := newSketch(t)
	p, in, out := c.draw(s)
	exact, size := ref.NewEnv(s.size), ref.NewEnv(s.size) // and the sums of absolute values, of which errors are a part
	x := make([][]float32, len(in))
	for i, slot := range in {
		x[i] = make([]float32, slot.Shape.Size())
		for j := range x[i] {
			x[i][j] = math.Float32frombits(math.Float32bits(float32(rng.NormFloat64())) &^ (1<<13 - 1))
			exact.At(slot)[j], size.At(slot)[j] = float64(x[i][j]), math.Abs(float64(x[i][j]))
		}
	}
	for _, e := range []*ref.Env{exact, size} {
		if err := ref.Eval(e, s.parts...); err != nil {
			t.Fatal(err)
		}
	}
	limit := 1e-5
	if c.kind == byWMasked {
		limit = 1e-3 // what the step before makes is no number of TF32, nor are its terms known
		for _, o := range out {
			most := 0.0
			for _, x := range exact.At(o) {
				most = max(most, math.Abs(x))
			}
			for i := range size.At(o) {
				size.At(o)[i] = most
			}
		}
	}
	ways := convWaysOf(p)
	if len(ways) < 2 {
		t.Fatalf("one way only: %v", ways[0].name)
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			l := loadWith(t, p, func(e *Exec) libraries { return only{vendor{e, e.tools}, w} })
			if l == nil {
				t.Skip("no way for this convolution")
			}
			for i, slot := range in {
				l.write(t, slot, x[i])
			}
			var first []float32
			for range 3 {
				for _, o := range out {
					l.write(t, o, slices.Repeat([]float32{float32(math.NaN())}, o.Shape.Size()))
				}
				if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
					t.Fatal(err)
				}
				var got []float32
				for k, o := range out {
					x := l.read(t, o)
					for i, want := range exact.At(o) {
						if err := math.Abs(float64(x[i]) - want); !(err <= limit*size.At(o)[i]+1e-30) {
							t.Fatalf("element %d of result %d is %v, want %v", i, k, x[i], want)
						}
					}
					got = append(got, x...)
				}
				if first == nil {
					first = got
				} else if !slices.Equal(first, got) {
					t.Error("other bits in another run")
				}
			}
		})
	}
}

// Whatever a gradient by filters is cut into, its parts cover all images, and a block has the memory that it needs.
func TestFilterTiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		w := ir.Window{Kernel: [2]int{1 + rng.IntN(5), 1 + rng.IntN(5)}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1, ChannelsLast: true}
		c := convolution{op: ir.Conv2dGradW{}, window: w, xs: [4]int{1 + rng.IntN(300), 32 * (1 + rng.IntN(4)), 5 + rng.IntN(60), 5 + rng.IntN(60)}}
		c.ys = [4]int{c.xs[0], 16 * (1 + rng.IntN(12)), w.Out(0, c.xs[2]), w.Out(1, c.xs[3])}
		c.ws = [4]int{c.ys[1], c.xs[1], w.Kernel[0], w.Kernel[1]}
		tile, ok := c.filterTile()
		if !ok {
			continue
		}
		b := &planner{plan: &plan{own: make([]span, 1)}, s: &ir.Step{}}
		if err := b.filterGradient(c, tile); err != nil {
			t.Fatal(err)
		}
		if tile.turns(w.Kernel) {
			if err := b.turnedGradient(c, tile); err != nil {
				t.Fatal(err)
			}
		}
		for _, task := range b.tasks {
			if l := task.do.(launch); l.shared > 227<<10 {
				t.Errorf("%v of %v in %+v: %d bytes", c.ys, c.xs, tile, l.shared)
			}
		}
		l := b.tasks[0].do.(launch)
		if tile.parts < 1 || tile.rows < 1 || l.planes*tile.rows16*16*32 != c.ys[1]*c.xs[1] {
			t.Errorf("%v of %v in %+v: %d planes", c.ys, c.xs, tile, l.planes)
		}
	}
}

// The same of convolutions that a Hopper's groups of warps make: all pixels and channels are some block's, which has the memory and the registers for it.
func TestHaloTiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	taken := 0
	for range 4000 {
		w := ir.Window{Kernel: [2]int{1 + rng.IntN(5), 1 + rng.IntN(5)}, Padding: [2]int{rng.IntN(3), rng.IntN(3)}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1, ChannelsLast: true}
		c := convolution{op: ir.Conv2d{}, window: w, xs: [4]int{1 + rng.IntN(300), 16 * (1 + rng.IntN(8)), 5 + rng.IntN(90), 5 + rng.IntN(90)}}
		c.ys = [4]int{c.xs[0], 16 * (1 + rng.IntN(12)), w.Out(0, c.xs[2]), w.Out(1, c.xs[3])}
		c.ws = [4]int{c.ys[1], c.xs[1], w.Kernel[0], w.Kernel[1]}
		in, out := c.xs, c.ys
		if rng.IntN(2) == 0 {
			c.op = ir.Conv2dGradX{}
			in, out = out, in
		}
		tile, ok := c.haloTile()
		if !ok {
			continue
		}
		taken++
		b := &planner{plan: &plan{own: make([]span, 1)}, s: &ir.Step{}}
		if err := b.halo(c, tile); err != nil {
			t.Fatal(err)
		}
		l := b.tasks[0].do.(launch)
		wide := tile.segment + w.Kernel[1] - 1
		tiles := out[0] * blocks(out[2], tile.rows) * blocks(out[3], tile.segment)
		switch {
		case l.shared > 227<<10 || tile.turns(w.Kernel)*tile.columns/2 > 160 || in[1]%tile.channels != 0 || tile.depth < 3:
			t.Errorf("%v to %v in %+v: %d bytes", in, out, tile, l.shared)
		case l.planes*tile.columns != out[1] || l.blocks < 1 || l.blocks > tiles:
			t.Errorf("%v to %v in %+v: %dx%d blocks", in, out, tile, l.blocks, l.planes)
		case tile.turns(w.Kernel)*64 < (tile.rows-1)*wide+tile.segment || tile.plane(w.Kernel) < (tile.rows+w.Kernel[0]-1)*wide:
			t.Errorf("%v to %v in %+v: pixels are left out", in, out, tile)
		}
	}
	if taken < 500 {
		t.Errorf("%d convolutions taken", taken)
	}
}

// BenchmarkConvWays times every way of some convolutions, as a trial does.
func BenchmarkConvWays(b *testing.B) {
	one := [2]int{1, 1}
	for _, c := range []convCase{
		{forward, 4096, 1, 28, 28, 32, [2]int{3, 3}, [2]int{}, one}, {byW, 4096, 1, 28, 28, 32, [2]int{3, 3}, [2]int{}, one},
		{byW, 4096, 32, 26, 26, 64, [2]int{3, 3}, [2]int{}, one},
		{forward, 64, 1, 28, 28, 32, [2]int{3, 3}, [2]int{}, one}, {byW, 64, 1, 28, 28, 32, [2]int{3, 3}, [2]int{}, one},
		{forward, 4096, 32, 26, 26, 64, [2]int{3, 3}, [2]int{}, one}, {byX, 4096, 32, 26, 26, 64, [2]int{3, 3}, [2]int{}, one},
		{forward, 64, 32, 26, 26, 64, [2]int{3, 3}, [2]int{}, one}, {byX, 64, 32, 26, 26, 64, [2]int{3, 3}, [2]int{}, one},
		{forward, 256, 64, 56, 56, 64, [2]int{3, 3}, one, one}, {byX, 256, 64, 56, 56, 64, [2]int{3, 3}, one, one},
		{byWMasked, 4096, 1, 28, 28, 32, [2]int{3, 3}, [2]int{}, one},
		{byW, 64, 32, 26, 26, 64, [2]int{3, 3}, [2]int{}, one},
		{byW, 128, 128, 28, 28, 128, [2]int{3, 3}, one, one}, {byW, 256, 64, 56, 56, 64, [2]int{3, 3}, one, one}, {byW, 128, 256, 14, 14, 256, [2]int{3, 3}, one, one},
	} {
		p, _, _ := c.draw(newSketch(b))
		for _, w := range convWaysOf(p) {
			b.Run(c.String()+"/"+w.name, func(b *testing.B) { timed(b, p, w) })
		}
	}
}
