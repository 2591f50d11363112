package cudnn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cache"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/cardtest"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

var must, random = cardtest.Must, cardtest.Random

// bench is a card with the library on it.
type bench struct {
	*cardtest.Bench
	handle *Handle
}

func openCard(t testing.TB) *bench {
	t.Helper()
	b := &bench{Bench: cardtest.Open(t)}
	lib, err := Open()
	if err != nil {
		t.Skipf("no cuDNN: %v", err)
	}
	b.handle, err = lib.Handle(b.Card)
	must(t, err)
	t.Cleanup(func() { must(t, b.handle.Close()) })
	return b
}

// sub is the bench for a subtest.
func (b *bench) sub(t testing.TB) *bench {
	t.Helper()
	return &bench{Bench: b.For(t), handle: b.handle}
}

// buffers are a convolution's buffers, and its result by float64.
type buffers struct {
	conv            Conv
	data            [4][]float32 // x, w, y and bias; the result is poisoned
	at              [4]cuda.Ptr
	workspace       cuda.Ptr
	want, magnitude []float64 // magnitude: sums of absolute values, which rounding is measured by
}

func size(shape [4]int) int { return shape[0] * shape[1] * shape[2] * shape[3] }

// result is which of x, w and y is computed.
func (o *buffers) result() int { return [...]int{Forward: 2, GradX: 0, GradW: 1}[o.conv.Kind] }

func (b *bench) fill(c Conv, workspace int64) *buffers {
	b.Helper()
	numbers := random
	if c.Type != ir.F32 {
		numbers = eighths
	}
	o := &buffers{conv: c, data: [4][]float32{numbers(size(c.X)), numbers(size(c.W)), numbers(size(c.Y)), numbers(c.Y[1])}}
	o.data[o.result()] = cardtest.Poison(len(o.data[o.result()]))
	for i := range o.data {
		o.at[i] = b.New(o.words(i), 0)
	}
	o.workspace = b.Alloc(int(workspace))
	o.compute()
	return o
}

// eighths are random ones between -1 and 1, which halves hold exactly.
func eighths(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rand.IntN(17)-8) / 8
	}
	return x
}

// words are the numbers of x, w, y or bias as they lie on the card, halves two a word.
func (o *buffers) words(i int) []float32 {
	x := o.lie(i, o.data[i], true)
	if o.conv.Type == ir.F32 {
		return x
	}
	words := make([]float32, (len(x)+1)/2)
	for at, v := range x {
		half := cardtest.Half(o.conv.Type, v) << (at % 2 * 16)
		words[at/2] = math.Float32frombits(math.Float32bits(words[at/2]) | half)
	}
	return words
}

// got is the result, from the card.
func (b *bench) got(o *buffers) []float32 {
	b.Helper()
	n := len(o.want)
	if o.conv.Type == ir.F32 {
		return b.Get(o.at[o.result()], n)
	}
	x := make([]float32, n)
	words := b.Get(o.at[o.result()], (n+1)/2)
	for at := range x {
		x[at] = whole(o.conv.Type, math.Float32bits(words[at/2])>>(at%2*16)&0xffff)
	}
	return x
}

// same compares the result with what it was.
func (b *bench) same(o *buffers, first []float32) {
	b.Helper()
	for i, x := range b.got(o) {
		if math.Float32bits(x) != math.Float32bits(first[i]) {
			b.Fatalf("%v: element %d is %v, then %v", o.conv, i, first[i], x)
		}
	}
}

// arithmetics are the kinds of numbers.
var arithmetics = []struct {
	Type ir.DType
	tf32 bool
}{{ir.F32, false}, {ir.F32, true}, {ir.BF16, false}, {ir.F16, false}}

// whole is the number of a half's bits.
func whole(t ir.DType, half uint32) float32 {
	if t == ir.BF16 {
		return math.Float32frombits(half << 16)
	}
	exponent, mantissa := int(half>>10&31), float64(half&0x3ff)
	x := math.Ldexp(1+mantissa/1024, exponent-15)
	switch exponent {
	case 0:
		x = math.Ldexp(mantissa, -24)
	case 31:
		x = math.NaN() // or infinite, which nothing here should be either
	}
	if half&0x8000 != 0 {
		x = -x
	}
	return float32(x)
}

// lie brings numbers of x, w, y or bias from the order of the shape into that in which they lie, or back.
func (o *buffers) lie(i int, numbers []float32, there bool) []float32 {
	if !o.conv.NHWC || i == 3 {
		return numbers
	}
	shape := [...][4]int{o.conv.X, o.conv.W, o.conv.Y}[i]
	channels, places := shape[1], shape[2]*shape[3]
	moved := make([]float32, len(numbers))
	for at := range numbers {
		n, c, hw := at/places/channels, at/places%channels, at%places
		to := (n*places+hw)*channels + c
		if there {
			moved[to] = numbers[at]
		} else {
			moved[at] = numbers[to]
		}
	}
	return moved
}

// compute makes what is to come out, by the definition.
func (o *buffers) compute() {
	c, w := o.conv, o.conv.Window
	n := len(o.data[o.result()])
	o.want, o.magnitude = make([]float64, n), make([]float64, n)
	perGroup := c.W[0] / w.Groups
	for img := range c.X[0] {
		for oc := range c.W[0] {
			for oy := range c.Y[2] {
				for ox := range c.Y[3] {
					y := ((img*c.Y[1]+oc)*c.Y[2]+oy)*c.Y[3] + ox
					for ic := range c.W[1] {
						for ky := range c.W[2] {
							iy := oy*w.Stride[0] - w.Padding[0] + ky*w.Dilation[0]
							if iy < 0 || iy >= c.X[2] {
								continue
							}
							for kx := range c.W[3] {
								ix := ox*w.Stride[1] - w.Padding[1] + kx*w.Dilation[1]
								if ix < 0 || ix >= c.X[3] {
									continue
								}
								at := [3]int{((img*c.X[1]+oc/perGroup*c.W[1]+ic)*c.X[2]+iy)*c.X[3] + ix, ((oc*c.W[1]+ic)*c.W[2]+ky)*c.W[3] + kx, y}
								in0, in1, out := operands(c.Kind, 0, 1, 2)
								v := float64(o.data[in0][at[in0]]) * float64(o.data[in1][at[in1]])
								o.want[at[out]] += v
								o.magnitude[at[out]] += math.Abs(v)
							}
						}
					}
					if c.Bias {
						o.want[y] += float64(o.data[3][oc])
						o.magnitude[y] += math.Abs(float64(o.data[3][oc]))
					}
					if c.Relu {
						o.want[y] = max(o.want[y], 0)
					}
				}
			}
		}
	}
}

// twice runs the offer that the plan has taken, on a result that was overwritten before, and sees that it is right and repeats its bits. An offer
// that turns out to be none is logged.
func (b *bench) twice(p *Plan, o *buffers, taken offer) {
	b.Helper()
	r := o.result()
	b.Put(o.at[r], o.words(r))
	err := p.run(o.at[0], o.at[1], o.at[2], o.at[3], o.workspace)
	if Unsupported(err) {
		b.Logf("%+v: %v", taken, err)
		return
	}
	must(b, err)
	first := b.check(p, o)
	b.run(p, o)
	b.same(o, first)
}

func (b *bench) run(p *Plan, o *buffers) {
	b.Helper()
	must(b, p.Run(o.at[0], o.at[1], o.at[2], o.at[3], o.workspace))
}

// check compares what is on the card with what was to come out.
func (b *bench) check(p *Plan, o *buffers) []float32 {
	b.Helper()
	limit := map[ir.DType]float64{ir.F32: 4e-6, ir.BF16: 4e-3, ir.F16: 1e-3}[o.conv.Type] // of the sum of absolute values
	if o.conv.TF32 {
		limit = 1e-3
	}
	got := b.got(o)
	worst := 0.0
	for i, x := range o.lie(o.result(), got, false) {
		// Transformed algorithms round where the definition has but zeros.
		if e := math.Abs(float64(x)-o.want[i]) / max(o.magnitude[i], 1); !(e <= worst) {
			worst = e
		}
	}
	if !(worst <= limit) {
		b.Errorf("%v by %+v: off by %g of the sum of absolute values", o.conv, p.by, worst)
	}
	b.Logf("%+v of %d offers: off by %.2g", p.by, len(p.offers), worst)
	return got
}

// convolutions are shapes of every kind.
func convolutions() []Conv {
	one := [2]int{1, 1}
	var all []Conv
	for _, kind := range []Kind{Forward, GradX, GradW} {
		all = append(all,
			conv(kind, [4]int{1, 1, 1, 1}, [4]int{1, 1, 1, 1}, one, [2]int{}, one, 1),
			conv(kind, [4]int{8, 1, 28, 28}, [4]int{16, 1, 3, 3}, one, one, one, 1),
			conv(kind, [4]int{4, 32, 14, 14}, [4]int{64, 32, 3, 3}, one, one, one, 1),
			conv(kind, [4]int{4, 16, 15, 13}, [4]int{8, 16, 5, 5}, [2]int{2, 2}, [2]int{2, 2}, one, 1),
			conv(kind, [4]int{4, 64, 7, 7}, [4]int{32, 64, 1, 1}, one, [2]int{}, one, 1),
			conv(kind, [4]int{2, 3, 32, 32}, [4]int{8, 3, 7, 7}, [2]int{2, 2}, [2]int{3, 3}, one, 1),
			conv(kind, [4]int{2, 8, 20, 20}, [4]int{8, 8, 3, 3}, one, [2]int{2, 2}, [2]int{2, 2}, 1),
			conv(kind, [4]int{4, 12, 10, 10}, [4]int{24, 3, 3, 3}, one, one, one, 4),
			conv(kind, [4]int{4, 16, 10, 10}, [4]int{16, 1, 3, 3}, [2]int{2, 2}, one, one, 16),
			small(kind),
			conv(kind, [4]int{3, 5, 9, 6}, [4]int{7, 5, 2, 4}, [2]int{3, 1}, [2]int{0, 2}, one, 1))
	}
	for _, c := range all[:len(all)/3] {
		c.Bias = true
		all = append(all, c)
		c.Relu = true
		all = append(all, c)
		c.Bias = false
		all = append(all, c)
	}
	for _, c := range all {
		c.NHWC = true
		all = append(all, c)
	}
	return all
}

// TestConvolutions: each is right by the library's first choice and by the fastest, and gives the same bits again.
func TestConvolutions(t *testing.T) {
	t.Setenv(cache.Variable, t.TempDir())
	b := openCard(t)
	b.handle.lib.remembers = choices.Open("cudnn")
	for _, c := range convolutions() {
		for _, a := range arithmetics {
			c.Type, c.TF32 = a.Type, a.tf32
			t.Run(c.String(), func(t *testing.T) {
				b := b.sub(t)
				p, err := b.handle.Conv(c)
				if (c.NHWC || c.Type != ir.F32) && Unsupported(err) {
					t.Skipf("not in this library: %v", err)
				}
				must(t, err)
				defer func() { must(t, p.Close()) }()
				o := b.fill(c, p.TuneWorkspace())
				b.run(p, o)
				b.check(p, o)
				must(t, p.Tune(o.at[0], o.at[1], o.at[2], o.at[3], o.workspace, p.TuneWorkspace()))
				r := o.result()
				b.Put(o.at[r], o.words(r))
				b.run(p, o)
				first := b.check(p, o)
				for range 3 {
					b.run(p, o)
				}
				b.same(o, first)
				again, err := b.handle.Conv(c)
				must(t, err)
				defer func() { must(t, again.Close()) }()
				if again.by != p.by {
					t.Errorf("%+v is planned again, %+v was chosen", again.by, p.by)
				}
			})
		}
	}
}

// TestEveryOffer: whatever the library offers is right, so that any may be chosen, and repeats its bits.
func TestEveryOffer(t *testing.T) {
	b := openCard(t)
	var all []Conv
	for _, c := range convolutions() {
		for _, a := range arithmetics {
			c.Type, c.TF32 = a.Type, a.tf32
			all = append(all, c)
		}
	}
	for _, c := range all {
		t.Run(c.String(), func(t *testing.T) {
			b := b.sub(t)
			p, err := b.handle.Conv(c)
			if (c.NHWC || c.Type != ir.F32) && Unsupported(err) {
				t.Skipf("not in this library: %v", err)
			}
			must(t, err)
			defer func() { must(t, p.Close()) }()
			o := b.fill(c, p.TuneWorkspace())
			for _, offer := range p.offers {
				must(t, p.take(offer))
				b.twice(p, o, offer)
			}
		})
	}
}

// TestPiecesOnCard: every algorithm is right in pieces too, of which the last may be smaller, and repeats its bits.
func TestPiecesOnCard(t *testing.T) {
	b := openCard(t)
	one := [2]int{1, 1}
	for _, kind := range []Kind{Forward, GradX, GradW} {
		for _, c := range []Conv{
			conv(kind, [4]int{9, 1, 28, 28}, [4]int{16, 1, 3, 3}, one, [2]int{}, one, 1),
			conv(kind, [4]int{10, 32, 14, 14}, [4]int{64, 32, 3, 3}, one, one, one, 1),
			conv(kind, [4]int{6, 16, 15, 13}, [4]int{8, 16, 5, 5}, [2]int{2, 2}, [2]int{2, 2}, one, 1),
			conv(kind, [4]int{8, 12, 10, 10}, [4]int{24, 3, 3, 3}, one, one, one, 4),
		} {
			c.Bias, c.Relu = kind == Forward, kind == Forward
			for i := range 4 {
				c.TF32, c.NHWC = i%2 > 0, i/2 > 0
				t.Run(c.String(), func(t *testing.T) {
					b := b.sub(t)
					p, err := b.handle.Conv(c)
					if c.NHWC && Unsupported(err) {
						t.Skipf("not in this library: %v", err)
					}
					must(t, err)
					defer func() { must(t, p.Close()) }()
					o := b.fill(c, p.TuneWorkspace())
					for _, offer := range p.offers {
						cut := cut{c.X[0], 4}
						must(t, p.take(offer))
						bytes, ok, err := p.space(offer, cut)
						must(t, err)
						if !ok {
							t.Logf("%+v: none in pieces", offer)
							continue
						}
						offer.samples, offer.bytes = cut.samples, bytes
						must(t, p.take(offer))
						o.workspace = b.Alloc(int(bytes))
						b.twice(p, o, offer)
					}
				})
			}
		}
	}
}

// TestCapture: a captured convolution runs again with what its operands hold then.
func TestCapture(t *testing.T) {
	b := openCard(t)
	for _, kind := range []Kind{Forward, GradX, GradW} {
		for _, tf32 := range []bool{false, true} {
			c := conv(kind, [4]int{8, 32, 14, 14}, [4]int{64, 32, 3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}, 1)
			c.Bias, c.Relu, c.TF32 = kind == Forward, kind == Forward, tf32
			t.Run(c.String(), func(t *testing.T) {
				b := b.sub(t)
				p, err := b.handle.Conv(c)
				must(t, err)
				defer func() { must(t, p.Close()) }()
				o := b.fill(c, p.Workspace())
				launch := b.Capture(func(s cuda.Stream) {
					must(t, b.handle.SetStream(s))
					b.run(p, o)
					must(t, b.handle.SetStream(b.Card.Stream))
				})
				if got := b.Get(o.at[o.result()], 1)[0]; !math.IsNaN(float64(got)) {
					t.Errorf("the convolution was made while it was captured: %v", got)
				}
				launch()
				b.check(p, o)
				again := b.fill(c, 0)
				again.at, again.workspace = o.at, o.workspace
				for i, x := range again.data {
					b.Put(again.at[i], x)
				}
				launch()
				b.check(p, again)
			})
		}
	}
}

// BenchmarkConvolution reports what the card does, by the library's first guess and by the fastest, for a layer of ResNet-18 and the first of a
// small network for MNIST; ns/op is what a call of Run costs the host.
func BenchmarkConvolution(bm *testing.B) {
	bm.Setenv(cache.Variable, bm.TempDir())
	one := [2]int{1, 1}
	for _, shape := range [][2][4]int{{{128, 128, 28, 28}, {128, 128, 3, 3}}, {{64, 1, 28, 28}, {32, 1, 3, 3}}} {
		for _, kind := range []Kind{Forward, GradX, GradW} {
			for i := range 4 {
				c := conv(kind, shape[0], shape[1], one, one, one, 1)
				c.TF32, c.NHWC = i%2 > 0, i/2 > 0
				bm.Run(fmt.Sprintf("%v/%v/nhwc=%t/tf32=%t", shape, kind, c.NHWC, c.TF32), func(bm *testing.B) {
					b := openCard(bm)
					b.handle.lib.remembers = choices.Open("cudnn")
					first, err := b.handle.Conv(c)
					if c.NHWC && Unsupported(err) {
						bm.Skipf("not in this library: %v", err)
					}
					must(bm, err)
					defer func() { must(bm, first.Close()) }()
					p, err := b.handle.Conv(c)
					must(bm, err)
					defer func() { must(bm, p.Close()) }()
					x, w, y := b.New(random(size(c.X)), 0), b.New(random(size(c.W)), 0), b.New(random(size(c.Y)), 0)
					bytes := max(p.TuneWorkspace(), first.Workspace())
					workspace := b.Alloc(int(bytes))
					must(bm, p.Tune(x, w, y, 0, workspace, bytes))
					run := func() error { return p.Run(x, w, y, 0, workspace) }
					flops := 2 * float64(size(c.Y)) * float64(c.W[1]*c.W[2]*c.W[3])
					rates := b.Rates(flops, b.handle.time, func() error { return first.Run(x, w, y, 0, workspace) }, run)
					for bm.Loop() {
						must(bm, run())
					}
					must(bm, b.Card.StreamSynchronize(b.Card.Stream))
					bm.ReportMetric(rates[0], "TFLOP/s")
					bm.ReportMetric(rates[1], "TFLOP/s-tuned")
					bm.Logf("%+v of %d offers", p.by, len(p.offers))
				})
			}
		}
	}
}

// BenchmarkOffers logs what each offer takes in the two layers of a small network for MNIST, for a batch that is cut and for a small one.
func BenchmarkOffers(bm *testing.B) {
	bm.Setenv(cache.Variable, bm.TempDir())
	one := [2]int{1, 1}
	var all []Conv
	for _, batch := range []int{4096, 64} {
		for _, shape := range [][2][4]int{{{batch, 1, 28, 28}, {32, 1, 3, 3}}, {{batch, 32, 26, 26}, {64, 32, 3, 3}}} {
			for _, kind := range []Kind{Forward, GradX, GradW} {
				c := conv(kind, shape[0], shape[1], one, [2]int{}, one, 1)
				c.Bias, c.Relu = kind == Forward, kind == Forward
				for _, a := range arithmetics[1:3] {
					for _, last := range []bool{false, true} {
						c.Type, c.TF32, c.NHWC = a.Type, a.tf32, last
						all = append(all, c)
					}
				}
			}
		}
	}
	for _, c := range all {
		bm.Run(c.String(), func(bm *testing.B) {
			b := openCard(bm)
			b.handle.lib.remembers = choices.Open("cudnn")
			p, err := b.handle.Conv(c)
			if Unsupported(err) {
				bm.Skip(err)
			}
			must(bm, err)
			defer func() { must(bm, p.Close()) }()
			few := random(size(c.Y) / c.Y[0]) // there is no need of more
			many := func(n int) cuda.Ptr {
				x := make([]float32, n)
				for at := 0; at < n; {
					at += copy(x[at:], few)
				}
				return b.New(x, 0)
			}
			x, w, y, bias := many(size(c.X)), many(size(c.W)), many(size(c.Y)), many(c.Y[1])
			bytes := p.TuneWorkspace()
			workspace := b.Alloc(int(bytes))
			run := func() error { return p.Run(x, w, y, bias, workspace) }
			for _, o := range p.offers {
				must(bm, p.take(o))
				ms, err := b.handle.time(func() error { return p.run(x, w, y, bias, workspace) })
				bm.Logf("%+v: %.3f ms %v", o, ms, err)
			}
			must(bm, p.Tune(x, w, y, bias, workspace, bytes))
			for bm.Loop() {
				must(bm, run())
			}
			must(bm, b.Card.StreamSynchronize(b.Card.Stream))
			bm.Logf("%+v is taken", p.by)
		})
	}
}
