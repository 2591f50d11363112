package ir

import (
	"math/rand/v2"
	"testing"
)

// enumerate lists the storage index of every element in row-major order.
func enumerate(offset int, shape Shape, strides []int) []int {
	idx := []int{offset}
	for i, d := range shape {
		var next []int
		for _, b := range idx {
			for k := range d {
				next = append(next, b+k*strides[i])
			}
		}
		idx = next
	}
	return idx
}

func TestReshapeStridesKeepOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, rand.Uint64()))
	expressed := 0
	for range 5000 {
		// A random view: permuted, sliced and broadcast.
		dims := make(Shape, rng.IntN(4)+1)
		for i := range dims {
			dims[i] = []int{1, 2, 3, 4, 6}[rng.IntN(5)]
		}
		strides := dims.Strides()
		rng.Shuffle(len(dims), func(i, j int) {
			dims[i], dims[j] = dims[j], dims[i]
			strides[i], strides[j] = strides[j], strides[i]
		})
		if rng.IntN(3) == 0 {
			strides[rng.IntN(len(dims))] = 0
		}
		// A random shape of the same size.
		var shape Shape
		for n := dims.Size(); n > 1 || rng.IntN(3) == 0; {
			d := rng.IntN(n) + 1
			for n%d != 0 {
				d--
			}
			shape = append(shape, d)
			n /= d
		}
		got, ok := reshapeStrides(dims, strides, shape)
		if !ok {
			continue
		}
		expressed++
		a, b := enumerate(0, dims, strides), enumerate(0, shape, got)
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("%v/%v as %v: strides %v give element %d from %d, want %d", dims, strides, shape, got, i, b[i], a[i])
			}
		}
	}
	if expressed < 500 {
		t.Fatalf("only %d of 5000 reshapes were expressed as strides", expressed)
	}
	// What must never need a copy: any reshape of a contiguous tensor.
	for range 1000 {
		shape := Of(rng.IntN(4)+1, rng.IntN(4)+1, rng.IntN(4)+1)
		for _, to := range []Shape{Of(shape.Size()), Of(1, shape.Size()), Of(shape[0]*shape[1], 1, shape[2]), Of(shape[0], shape[1]*shape[2])} {
			if _, ok := reshapeStrides(shape, shape.Strides(), to); !ok {
				t.Fatalf("%v does not reshape to %v", shape, to)
			}
			if _, ok := reshapeStrides(to, to.Strides(), shape); !ok {
				t.Fatalf("%v does not reshape to %v", to, shape)
			}
		}
	}
}
