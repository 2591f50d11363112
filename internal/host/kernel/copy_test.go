package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// contiguous returns the strides of a row-major tensor.
func contiguous(shape []int) []int {
	strides := make([]int, len(shape))
	n := 1
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = n
		n *= shape[d]
	}
	return strides
}

func permuted(x, perm []int) []int {
	out := make([]int, len(x))
	for i, p := range perm {
		out[i] = x[p]
	}
	return out
}

func checkCopy(t *testing.T, p *Pool, r *rand.Rand, shape, dstStride, srcStride []int) []float32 {
	t.Helper()
	end := func(stride []int) int {
		last := 0
		for d, n := range shape {
			if n == 0 {
				return 0
			}
			last += (n - 1) * stride[d]
		}
		return last + 1
	}
	src, dst := normals(r, end(srcStride)), poison(end(dstStride))
	want := append([]float32(nil), dst...)
	var fill func(d, to, from int)
	fill = func(d, to, from int) {
		if d == len(shape) {
			want[to] = src[from]
			return
		}
		for i := range shape[d] {
			fill(d+1, to+i*dstStride[d], from+i*srcStride[d])
		}
	}
	fill(0, 0, 0)
	c := NewStridedCopy(p, shape, dstStride, srcStride)
	c.Run(dst, src)
	if !sameBits(dst, want) {
		t.Fatalf("copy of %v with strides %v from %v is wrong", shape, dstStride, srcStride)
	}
	noAllocs(t, func() { c.Run(dst, src) })
	return dst
}

func TestStridedCopy(t *testing.T) {
	forPools(t, func(t *testing.T, p *Pool, r *rand.Rand) []float32 {
		var all []float32
		check := func(shape, dst, src []int) { all = append(all, checkCopy(t, p, r, shape, dst, src)...) }
		check(nil, nil, nil)
		check([]int{0, 3}, []int{3, 1}, []int{3, 1})
		check([]int{300, 500}, []int{500, 1}, []int{1, 300}) // a large transpose
		check([]int{130000}, []int{1}, []int{1})
		check([]int{70, 900}, []int{900, 1}, []int{1, 0}) // rows repeated
		check([]int{70, 900}, []int{900, 1}, []int{0, 1})
		check([]int{70, 900}, []int{900, 1}, []int{0, 0})
		check([]int{50, 90}, []int{180, 2}, []int{90, 1}) // into a slice
		for range 150 {
			rank := 1 + r.IntN(6)
			shape := make([]int, rank)
			for d := range shape {
				shape[d] = 1 + r.IntN([]int{0, 70, 40, 20, 9, 6, 5}[rank])
			}
			// dst is part of a larger tensor; src is a permuted, sliced or repeated one.
			room := make([]int, rank)
			for d := range room {
				room[d] = shape[d] + r.IntN(2)
			}
			perm := r.Perm(rank)
			back := make([]int, rank)
			for i, p := range perm {
				back[p] = i
			}
			src := permuted(contiguous(permuted(shape, perm)), back)
			for d := range src {
				switch r.IntN(8) {
				case 0:
					src[d] = 0
				case 1:
					src[d] *= 2
				}
			}
			check(shape, contiguous(room), src)
		}
		return all
	})
}

func BenchmarkStridedCopy(b *testing.B) {
	p := NewPool(1)
	x, y := make([]float32, 784*512), make([]float32, 784*512)
	for _, c := range []struct {
		name     string
		dst, src []int
	}{
		{"contiguous", []int{512, 1}, []int{512, 1}},
		{"transpose", []int{512, 1}, []int{1, 784}},
	} {
		b.Run(fmt.Sprint(c.name), func(b *testing.B) {
			plan := NewStridedCopy(p, []int{784, 512}, c.dst, c.src)
			b.SetBytes(int64(8 * len(x)))
			for b.Loop() {
				plan.Run(y, x)
			}
		})
	}
}
