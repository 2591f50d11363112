package exec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

// term is a part of an address: index / div % mod * mul. A mod of 0 is none.
type term struct{ div, mod, mul int }

// address is where the elements of a strided operand lie, in elements from its first, as a sum of terms of the flat row-major index.
type address []term

// newAddress gives the address for the dimensions of shape. Neighbours that lie one after the other come to one term; a dimension that
// repeats, to none.
func newAddress(shape, strides []int) address {
	var a address
	inner := 1
	for d := len(shape) - 1; d >= 0; d-- {
		n, stride := shape[d], strides[d]
		if n == 1 {
			continue
		}
		if last := len(a) - 1; last >= 0 && a[last].div*a[last].mod == inner && a[last].mul*a[last].mod == stride {
			a[last].mod *= n
		} else if stride != 0 {
			a = append(a, term{inner, n, stride})
		}
		inner *= n
	}
	if last := len(a) - 1; last >= 0 && a[last].div*a[last].mod == inner {
		a[last].mod = 0
	}
	return a
}

// in writes the address in C++, as a function of the variable i.
func (a address) in(i string) string {
	if len(a) == 0 {
		return "0"
	}
	parts := make([]string, len(a))
	for k, t := range a {
		x := i
		if t.div != 1 {
			x += fmt.Sprintf(" / %d", t.div)
		}
		if t.mod != 0 {
			x += fmt.Sprintf(" %% %d", t.mod)
		}
		if t.mul != 1 {
			x += fmt.Sprintf(" * %d", t.mul)
		}
		parts[k] = x
	}
	return strings.Join(parts, " + ")
}

// lane is the stride between the elements of indices 4m, 4m+1, 4m+2, 4m+3, if it is one for every m.
func (a address) lane() (stride int, ok bool) {
	for _, t := range a {
		switch {
		case t.div%lanes == 0:
		case t.div == 1 && t.mod%lanes == 0:
			stride = t.mul
		default:
			return 0, false
		}
	}
	return stride, true
}

// even reports whether the elements of the indices 4m lie at multiples of 4.
func (a address) even() bool {
	for _, t := range a {
		if t.div != 1 && t.mul%lanes != 0 {
			return false
		}
	}
	return true
}

// lanes is how many elements a thread takes at once where memory's layout allows it: 16 bytes.
const lanes = 4

// warpThreads is how many threads are a warp.
const warpThreads = 32

// dense reports whether strides are those of the shape, without gaps.
func dense(shape, strides []int) bool {
	return ir.Operand{Shape: shape, Strides: strides}.Contiguous()
}

// pick takes the elements of list at the given places.
func pick(list, at []int) []int {
	out := make([]int, len(at))
	for i, p := range at {
		out[i] = list[p]
	}
	return out
}

// reach is how many elements lie from the first to the last.
func reach(shape, strides []int) int {
	n := 1
	for d, e := range shape {
		n += max(e-1, 0) * strides[d]
	}
	return n
}

// indexType is the C++ type that indices and offsets up to the largest of these numbers need.
func indexType(sizes ...int) string {
	if slices.Max(sizes) < 1<<31 {
		return "u32"
	}
	return "u64"
}
