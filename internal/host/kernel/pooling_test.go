package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func poolShapes(r *rand.Rand) []Pool2dShape {
	one := [2]int{1, 1}
	shapes := []Pool2dShape{
		{Planes: 5, H: 24, W: 24, Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: one},
		{Planes: 100, H: 13, W: 37, Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: one},
		{Planes: 3, H: 7, W: 6, Kernel: [2]int{3, 3}, Stride: [2]int{2, 2}, Padding: one, Dilation: one},
		{Planes: 1, H: 2, W: 9, Kernel: [2]int{2, 2}, Stride: one, Padding: [2]int{1, 0}, Dilation: [2]int{3, 1}}, // a window of padding alone
	}
	for range 20 {
		pair := func(lo, n int) [2]int { return [2]int{lo + r.IntN(n), lo + r.IntN(n)} }
		s := Pool2dShape{Planes: 1 + r.IntN(4), H: 1 + r.IntN(12), W: 1 + r.IntN(25), Kernel: pair(1, 3), Stride: pair(1, 3), Padding: pair(0, 2), Dilation: pair(1, 2)}
		if oh, ow := s.OutHW(); oh > 0 && ow > 0 {
			shapes = append(shapes, s)
		}
	}
	return shapes
}

// window calls f with the index in its plane of every element of a window.
func (s Pool2dShape) window(oy, ox int, f func(i int)) {
	for ky := range s.Kernel[0] {
		for kx := range s.Kernel[1] {
			y, x := oy*s.Stride[0]+ky*s.Dilation[0]-s.Padding[0], ox*s.Stride[1]+kx*s.Dilation[1]-s.Padding[1]
			if y >= 0 && x >= 0 && y < s.H && x < s.W {
				f(y*s.W + x)
			}
		}
	}
}

// ties returns random numbers of few values, with some NaN.
func ties(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.IntN(5) - 2)
		if r.IntN(50) == 0 {
			x[i] = float32(math.NaN())
		}
	}
	return x
}

func TestMaxPool2d(t *testing.T) {
	forPools(t, func(t *testing.T, p *Pool, r *rand.Rand) []float32 {
		var all []float32
		for _, s := range poolShapes(r) {
			oh, ow := s.OutHW()
			x, dy := ties(r, s.Planes*s.H*s.W), normals(r, s.Planes*oh*ow)
			y, dx := poison(len(dy)), poison(len(x))
			m := NewMaxPool2d(p, s)
			m.Run(y, x)
			m.Grad(dx, x, dy)

			wantDX := newSums(len(x))
			for o := range y {
				plane := o / (oh * ow) * s.H * s.W
				at, best := -1, math.Inf(-1)
				s.window(o/ow%oh, o%ow, func(i int) {
					if v := float64(x[plane+i]); best == best && (at < 0 || v > best || v != v) {
						at, best = i, v
					}
				})
				if !near(y[o], best, 0) {
					t.Fatalf("%+v: output %d is %v, want %v", s, o, y[o], best)
				}
				if at >= 0 {
					wantDX.add(plane+at, float64(dy[o]))
				}
			}
			wantDX.check(t, fmt.Sprintf("%+v dx", s), dx)
			noAllocs(t, func() { m.Run(y, x); m.Grad(dx, x, dy) })
			all = append(append(all, y...), dx...)
		}
		return all
	})
}

func TestAvgPool2d(t *testing.T) {
	forPools(t, func(t *testing.T, p *Pool, r *rand.Rand) []float32 {
		var all []float32
		check := func(name string, a *AvgPool2d, planes, in, out int, window func(o int, f func(i int)), divisor func(n int) int) {
			x, dy := normals(r, planes*in), normals(r, planes*out)
			y, dx := poison(len(dy)), poison(len(x))
			a.Run(y, x)
			a.Grad(dx, dy)
			wantY, wantDX := newSums(len(y)), newSums(len(x))
			for o := range y {
				n := 0
				window(o%out, func(int) { n++ })
				window(o%out, func(i int) {
					i += o / out * in
					wantY.add(o, float64(x[i])/float64(divisor(n)))
					wantDX.add(i, float64(dy[o])/float64(divisor(n)))
				})
			}
			wantY.check(t, name+" y", y)
			wantDX.check(t, name+" dx", dx)
			noAllocs(t, func() { a.Run(y, x); a.Grad(dx, dy) })
			all = append(append(all, y...), dx...)
		}
		for _, s := range poolShapes(r) {
			oh, ow := s.OutHW()
			window := func(o int, f func(i int)) { s.window(o/ow, o%ow, f) }
			check(fmt.Sprintf("%+v", s), NewAvgPool2d(p, s, false), s.Planes, s.H*s.W, oh*ow, window, func(n int) int { return n })
			check(fmt.Sprintf("%+v with padding", s), NewAvgPool2d(p, s, true), s.Planes, s.H*s.W, oh*ow, window, func(int) int { return s.Kernel[0] * s.Kernel[1] })
		}
		for range 10 {
			h, w, oh, ow := 1+r.IntN(12), 1+r.IntN(12), 1+r.IntN(7), 1+r.IntN(7)
			window := func(o int, f func(i int)) {
				y0, y1 := int(math.Floor(float64(o/ow*h)/float64(oh))), int(math.Ceil(float64((o/ow+1)*h)/float64(oh)))
				x0, x1 := int(math.Floor(float64(o%ow*w)/float64(ow))), int(math.Ceil(float64((o%ow+1)*w)/float64(ow)))
				for y := y0; y < y1; y++ {
					for x := x0; x < x1; x++ {
						f(y*w + x)
					}
				}
			}
			check(fmt.Sprintf("adaptive %dx%d to %dx%d", h, w, oh, ow), NewAdaptiveAvgPool2d(p, 3, h, w, oh, ow), 3, h*w, oh*ow, window, func(n int) int { return n })
		}
		return all
	})
}

func BenchmarkMaxPool2d(b *testing.B) {
	s := Pool2dShape{Planes: 64 * 64, H: 24, W: 24, Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: [2]int{1, 1}}
	r := newRand(b)
	x, y := normals(r, s.Planes*24*24), make([]float32, s.Planes*12*12)
	dx := make([]float32, len(x))
	for _, l := range Levels() {
		p := NewPoolLevel(1, l)
		m := NewMaxPool2d(p, s)
		b.Run(l.String()+"/forward", func(b *testing.B) {
			for b.Loop() {
				m.Run(y, x)
			}
		})
		b.Run(l.String()+"/grad", func(b *testing.B) {
			for b.Loop() {
				m.Grad(dx, x, y)
			}
		})
	}
}
