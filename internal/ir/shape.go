package ir

import (
	"fmt"
	"slices"
	"strings"
)

// DType is an element type.
type DType uint8

// The element types.
const (
	F32  DType = iota // IEEE 754 single precision
	I32               // two's complement, for labels and indices
	BF16              // the upper half of a float32
	F16               // IEEE 754 half precision
)

// String returns the type's short name.
func (d DType) String() string {
	if names := [...]string{"f32", "i32", "bf16", "f16"}; int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// Size returns the bytes of one element.
func (d DType) Size() int {
	if d.Half() {
		return 2
	}
	return wordSize
}

// Half reports whether the type takes 16 bits. Halves are a way to store a value in memory that is an F32 to those who compute with it:
// only operands of programs have these types.
func (d DType) Half() bool { return d == BF16 || d == F16 }

// wordSize is the bytes of what sizes of regions count.
const wordSize = 4

// Shape lists the extent of each dimension, outermost first. Rank 0 is a scalar.
type Shape []int

// Of is a Shape of the given extents.
func Of(dims ...int) Shape { return Shape(dims) }

// Size returns the number of elements.
func (s Shape) Size() int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Equal reports whether both shapes have the same extents.
func (s Shape) Equal(t Shape) bool { return slices.Equal(s, t) }

// Clone returns a copy.
func (s Shape) Clone() Shape { return slices.Clone(s) }

// Strides returns the row-major strides, in elements.
func (s Shape) Strides() []int {
	st := make([]int, len(s))
	n := 1
	for i := len(s) - 1; i >= 0; i-- {
		st[i] = n
		n *= s[i]
	}
	return st
}

// String formats the shape as [2,3].
func (s Shape) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, d)
	}
	b.WriteByte(']')
	return b.String()
}
