package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

var convShapes = []Conv2dShape{
	{N: 2, C: 1, H: 5, W: 5, Out: 1, Kernel: [2]int{1, 1}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1},
	{N: 3, C: 1, H: 14, W: 28, Out: 32, Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1},
	{N: 2, C: 32, H: 8, W: 26, Out: 40, Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1},
	{N: 19, C: 3, H: 9, W: 17, Out: 5, Kernel: [2]int{3, 5}, Stride: [2]int{1, 1}, Padding: [2]int{1, 2}, Dilation: [2]int{1, 1}, Groups: 1},
	{N: 2, C: 4, H: 13, W: 11, Out: 6, Kernel: [2]int{3, 3}, Stride: [2]int{2, 2}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 2},
	{N: 1, C: 3, H: 20, W: 41, Out: 7, Kernel: [2]int{3, 2}, Stride: [2]int{2, 1}, Padding: [2]int{0, 1}, Dilation: [2]int{2, 3}, Groups: 1},
	{N: 2, C: 6, H: 8, W: 8, Out: 6, Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 6},
	{N: 1, C: 2, H: 4, W: 3, Out: 3, Kernel: [2]int{2, 1}, Stride: [2]int{1, 1}, Padding: [2]int{3, 2}, Dilation: [2]int{1, 1}, Groups: 1},
	{N: 1, C: 70, H: 7, W: 7, Out: 9, Kernel: [2]int{3, 3}, Stride: [2]int{1, 3}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1},
	{N: 1, C: 128, H: 4, W: 5, Out: 70, Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}, // weights packed in blocks, at the same time
	{N: 2, C: 2, H: 4, W: 5, Out: 600, Kernel: [2]int{1, 1}, Stride: [2]int{2, 1}, Dilation: [2]int{1, 1}, Groups: 2},
}

func randomConv(r *rand.Rand) Conv2dShape {
	for {
		groups := 1 + r.IntN(3)
		pair := func(lo, n int) [2]int { return [2]int{lo + r.IntN(n), lo + r.IntN(n)} }
		s := Conv2dShape{N: 1 + r.IntN(3), C: groups * (1 + r.IntN(3)), H: 1 + r.IntN(14), W: 1 + r.IntN(30), Out: groups * (1 + r.IntN(9)),
			Kernel: pair(1, 4), Stride: pair(1, 3), Padding: pair(0, 3), Dilation: pair(1, 2), Groups: groups}
		if oh, ow := s.OutHW(); oh > 0 && ow > 0 {
			return s
		}
	}
}

// eachProduct calls f with the indices in y, x and w of every product of the convolution.
func (s Conv2dShape) eachProduct(f func(y, x, w int)) {
	oh, ow := s.OutHW()
	ck, ok := s.C/s.Groups, s.Out/s.Groups
	for n := range s.N {
		for o := range s.Out {
			for oy := range oh {
				for ox := range ow {
					for c := range ck {
						for ky := range s.Kernel[0] {
							for kx := range s.Kernel[1] {
								iy := oy*s.Stride[0] + ky*s.Dilation[0] - s.Padding[0]
								ix := ox*s.Stride[1] + kx*s.Dilation[1] - s.Padding[1]
								if iy < 0 || ix < 0 || iy >= s.H || ix >= s.W {
									continue
								}
								f(((n*s.Out+o)*oh+oy)*ow+ox, ((n*s.C+o/ok*ck+c)*s.H+iy)*s.W+ix, ((o*ck+c)*s.Kernel[0]+ky)*s.Kernel[1]+kx)
							}
						}
					}
				}
			}
		}
	}
}

// sums accumulates products in float64 beside the sum of their magnitudes, which scales the tolerance.
type sums struct{ value, size []float64 }

func newSums(n int) sums { return sums{make([]float64, n), make([]float64, n)} }

func (s sums) add(i int, v float64) {
	s.value[i] += v
	s.size[i] += math.Abs(v)
}

func (s sums) check(t *testing.T, name string, got []float32) {
	t.Helper()
	for i, g := range got {
		// Some thousand roundings of random sign; a missing product is far larger.
		if !(math.Abs(float64(g)-s.value[i]) <= 40*0x1p-24*s.size[i]) {
			t.Fatalf("%s: element %d is %v, want %v (sum of magnitudes %v)", name, i, g, s.value[i], s.size[i])
		}
	}
}

func TestConv2d(t *testing.T) {
	manyShapes(t)
	forPools(t, func(t *testing.T, p *Pool, r *rand.Rand) []float32 {
		var all []float32
		shapes := append([]Conv2dShape(nil), convShapes...)
		for range 12 {
			shapes = append(shapes, randomConv(r))
		}
		for i, s := range shapes {
			name := fmt.Sprintf("%+v", s)
			oh, ow := s.OutHW()
			x := normals(r, s.N*s.C*s.H*s.W)
			w := normals(r, s.Out*s.C/s.Groups*s.Kernel[0]*s.Kernel[1])
			dy := normals(r, s.N*s.Out*oh*ow)
			bias := normals(r, s.Out)
			y, dx, dw := poison(len(dy)), poison(len(x)), poison(len(w))

			forward, gradX, gradW := NewConv2d(p, s), NewConv2dGradX(p, s), NewConv2dGradW(p, s)
			poisonScratch(p)
			relu := i%2 == 0
			forward.Run(y, x, w, bias, relu)
			gradX.Run(dx, w, dy)
			gradW.Run(dw, x, dy)

			wantY, wantX, wantW := newSums(len(y)), newSums(len(x)), newSums(len(w))
			for i := range y {
				wantY.add(i, float64(bias[i/(oh*ow)%s.Out]))
			}
			s.eachProduct(func(yi, xi, wi int) {
				wantY.add(yi, float64(x[xi])*float64(w[wi]))
				wantX.add(xi, float64(dy[yi])*float64(w[wi]))
				wantW.add(wi, float64(dy[yi])*float64(x[xi]))
			})
			if relu {
				for i, v := range wantY.value {
					wantY.value[i] = max(v, 0)
				}
			}
			wantY.check(t, name+" y", y)
			wantX.check(t, name+" dx", dx)
			wantW.check(t, name+" dw", dw)
			all = append(append(append(all, y...), dx...), dw...)

			if i < 6 {
				noAllocs(t, func() {
					forward.Run(y, x, w, nil, false)
					gradX.Run(dx, w, dy)
					gradW.Run(dw, x, dy)
				})
			}
		}
		return all
	})
}

func TestImpossibleConvPanics(t *testing.T) {
	p := NewPool(1)
	one := [2]int{1, 1}
	for _, s := range []Conv2dShape{
		{N: 1, C: 3, H: 5, W: 5, Out: 4, Kernel: one, Stride: one, Dilation: one, Groups: 2},
		{N: 1, C: 3, H: 5, W: 5, Out: 4, Kernel: [2]int{6, 1}, Stride: one, Dilation: one, Groups: 1},
		{N: 1, C: 3, H: 5, W: 5, Out: 4, Kernel: one, Dilation: one, Groups: 1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was accepted", s)
				}
			}()
			NewConv2d(p, s)
		}()
	}
}

// The two convolutions of the MNIST net, at batch 64.
func BenchmarkConv2d(b *testing.B) {
	one := [2]int{1, 1}
	for _, l := range Levels()[1:] {
		peak := measurePeak(l)
		for _, threads := range threadCounts() {
			p := NewPoolLevel(threads, l)
			for _, s := range []Conv2dShape{
				{N: 64, C: 1, H: 28, W: 28, Out: 32, Kernel: [2]int{3, 3}, Stride: one, Dilation: one, Groups: 1},
				{N: 64, C: 32, H: 26, W: 26, Out: 64, Kernel: [2]int{3, 3}, Stride: one, Dilation: one, Groups: 1},
			} {
				oh, ow := s.OutHW()
				x, w := make([]float32, s.N*s.C*s.H*s.W), make([]float32, s.Out*s.C*9)
				y := make([]float32, s.N*s.Out*oh*ow)
				flops := 2 * float64(len(y)*s.C*9)
				forward, gradX, gradW := NewConv2d(p, s), NewConv2dGradX(p, s), NewConv2dGradW(p, s)
				for _, c := range []struct {
					name string
					f    func()
				}{
					{"forward", func() { forward.Run(y, x, w, nil, true) }},
					{"gradX", func() { gradX.Run(x, w, y) }},
					{"gradW", func() { gradW.Run(w, x, y) }},
				} {
					b.Run(fmt.Sprintf("%v/threads=%d/%d-%d/%s", l, threads, s.C, s.Out, c.name), func(b *testing.B) {
						for b.Loop() {
							c.f()
						}
						rate := flops * float64(b.N) / b.Elapsed().Seconds()
						b.ReportMetric(rate/1e9, "GFLOP/s")
						b.ReportMetric(100*rate/peak, "%peak")
					})
				}
			}
			p.Close()
		}
	}
}
