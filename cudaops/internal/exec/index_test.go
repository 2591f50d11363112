package exec

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// at evaluates an address as C++ would.
func (a address) at(i int) int {
	sum := 0
	for _, t := range a {
		x := i / t.div
		if t.mod != 0 {
			x %= t.mod
		}
		sum += x * t.mul
	}
	return sum
}

// byDefinition is where element i of an operand lies, by definition.
func byDefinition(o ir.Operand, i int) int {
	at := o.Offset
	for d := len(o.Shape) - 1; d >= 0; d-- {
		at += i % o.Shape[d] * o.Strides[d]
		i /= o.Shape[d]
	}
	return at
}

// operand draws a view: permuted, sliced, repeated.
func operand(rng *rand.Rand) ir.Operand {
	rank := rng.IntN(6)
	o := ir.Operand{Shape: make(ir.Shape, rank), Strides: make([]int, rank), Offset: rng.IntN(9)}
	stride := 1
	for _, d := range rng.Perm(rank) {
		o.Shape[d] = []int{1, 2, 3, 4, 5, 8, 12}[rng.IntN(7)]
		switch rng.IntN(4) {
		case 0: // repeats
		case 1:
			stride *= 1 + rng.IntN(2)
			fallthrough
		default:
			o.Strides[d] = stride
			stride *= o.Shape[d]
		}
	}
	if rng.IntN(3) == 0 {
		o.Strides = o.Shape.Strides()
	}
	return o
}

func TestAddress(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		o := operand(rng)
		a := newAddress(o.Shape, o.Strides)
		n := o.Shape.Size()
		stride, laned := a.lane()
		for i := range n {
			if got, want := o.Offset+a.at(i), byDefinition(o, i); got != want {
				t.Fatalf("seed %d: element %d of %v: got %d, want %d (%v)", seed, i, o, got, want, a)
			}
			if laned && i%lanes != 0 && a.at(i) != a.at(i-1)+stride {
				t.Fatalf("seed %d: %v: element %d is not %d after the one before (%v)", seed, o, i, stride, a)
			}
			if laned && i%lanes == 0 && a.even() && a.at(i)%lanes != 0 {
				t.Fatalf("seed %d: %v: element %d lies at %d, which is not even (%v)", seed, o, i, a.at(i), a)
			}
		}
		if dense(o.Shape, o.Strides) && n > 1 && len(a) != 1 {
			t.Errorf("%v: address %v, one term would do", o, a)
		}
		if last := a.at(n - 1); last+1 != reach(o.Shape, o.Strides) {
			t.Errorf("%v: reach %d, the last is at %d", o, reach(o.Shape, o.Strides), last)
		}
	}
}

func TestSqueeze(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		o := operand(rng)
		p := ir.Operand{Shape: o.Shape, Strides: o.Shape.Strides()}
		ext, strides := ir.Squeeze(o.Shape, o.Strides, p.Strides)
		for i := range o.Shape.Size() {
			for k, want := range []ir.Operand{o, p} {
				if got := want.Offset + newAddress(ext, strides[k]).at(i); got != byDefinition(want, i) {
					t.Fatalf("element %d of %v: got %d, want %d", i, want, got, byDefinition(want, i))
				}
			}
		}
	}
}

func TestAddressInCPlusPlus(t *testing.T) {
	for _, c := range []struct {
		shape, strides []int
		want           string
	}{
		{[]int{}, []int{}, "0"},
		{[]int{4, 6}, []int{6, 1}, "i"},
		{[]int{4, 6}, []int{0, 0}, "0"},
		{[]int{4, 6}, []int{0, 1}, "i % 6"},
		{[]int{4, 6}, []int{1, 0}, "i / 6"},
		{[]int{4, 6}, []int{1, 4}, "i % 6 * 4 + i / 6"},
		{[]int{2, 4, 6}, []int{48, 12, 2}, "i * 2"},
		{[]int{2, 4, 6}, []int{60, 12, 2}, "i % 24 * 2 + i / 24 * 60"},
		{[]int{2, 4, 6}, []int{1, 0, 2}, "i % 6 * 2 + i / 24"},
	} {
		if got := newAddress(c.shape, c.strides).in("i"); got != c.want {
			t.Errorf("%v %v: got %s, want %s", c.shape, c.strides, got, c.want)
		}
	}
}
