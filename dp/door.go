package dp

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// door turns what a caller passes into what programs take: row-major float32 or int32. Its buffers are kept from step to step.
type door struct {
	floats []float32
	ints   []int32

	// Of what is scattered to other processes, or comes from one.
	packed, received []float32
	shape            []int
}

// form is a tensor's type and shape.
type form struct {
	ints  bool
	shape []int // nil: there is no tensor
}

func (f form) String() string {
	dtype := "float32"
	if f.ints {
		dtype = "int32"
	}
	return fmt.Sprintf("%s%v", dtype, f.shape)
}

// batch is a row-major tensor, as bytes of float32 or int32.
type batch struct {
	form
	bytes []byte
}

// ints reports whether the elements are integers.
func isInt(dt tensor.Dtype) bool {
	switch dt {
	case tensor.Int, tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64, tensor.Uint:
		return true
	}
	return false
}

// floatsOf passes a tensor as float32: a row-major float32 tensor as it is, others converted.
func (d *door) floatsOf(what string, t tensor.Tensor) (batch, error) {
	if x, ok := rowMajor[float32](t); ok {
		return batch{form{false, t.Shape()}, ir.Bytes(x)}, nil
	}
	dense, err := contiguous(what, t)
	if err != nil {
		return batch{}, err
	}
	switch x := dense.Data().(type) {
	case []float32:
		convert(&d.floats, x)
	case []float64:
		convert(&d.floats, x)
	case []int:
		convert(&d.floats, x)
	case []int8:
		convert(&d.floats, x)
	case []int16:
		convert(&d.floats, x)
	case []int32:
		convert(&d.floats, x)
	case []int64:
		convert(&d.floats, x)
	case []uint8:
		convert(&d.floats, x)
	case []uint16:
		convert(&d.floats, x)
	case []uint32:
		convert(&d.floats, x)
	case []uint64:
		convert(&d.floats, x)
	case []uint:
		convert(&d.floats, x)
	default:
		return batch{}, inputError(what, t, "give float32, float64 or an integer type")
	}
	return batch{form{false, t.Shape()}, ir.Bytes(d.floats)}, nil
}

// intsOf passes an integer tensor as int32.
func (d *door) intsOf(what string, t tensor.Tensor) (batch, error) {
	if x, ok := rowMajor[int32](t); ok {
		return batch{form{true, t.Shape()}, ir.Bytes(x)}, nil
	}
	if !isInt(t.Dtype()) {
		return batch{}, inputError(what, t, "give an integer type, such as int32 or int")
	}
	dense, err := contiguous(what, t)
	if err != nil {
		return batch{}, err
	}
	var at int
	switch x := dense.Data().(type) {
	case []int:
		at = narrow(&d.ints, x)
	case []int8:
		at = narrow(&d.ints, x)
	case []int16:
		at = narrow(&d.ints, x)
	case []int32:
		at = narrow(&d.ints, x)
	case []int64:
		at = narrow(&d.ints, x)
	case []uint8:
		at = narrow(&d.ints, x)
	case []uint16:
		at = narrow(&d.ints, x)
	case []uint32:
		at = narrow(&d.ints, x)
	case []uint64:
		at = narrow(&d.ints, x)
	case []uint:
		at = narrow(&d.ints, x)
	default:
		return batch{}, inputError(what, t, "give a tensor with its data in Go memory")
	}
	if at >= 0 {
		return batch{}, inputError(what, t, "the element at index %d does not fit int32", at)
	}
	return batch{form{true, t.Shape()}, ir.Bytes(d.ints)}, nil
}

// rowMajor returns the elements of t where they lie row-major in a slice of that type.
func rowMajor[T float32 | int32](t tensor.Tensor) ([]T, bool) {
	dense, ok := t.(*tensor.Dense)
	if !ok || dense.RequiresIterator() || dense.DataOrder().IsColMajor() || !dense.DataOrder().IsContiguous() {
		return nil, false
	}
	switch x := dense.Data().(type) {
	case []T:
		if len(x) == dense.Shape().TotalSize() {
			return x, true
		}
	case T:
		return []T{x}, true
	}
	return nil, false
}

// contiguous makes a row-major copy of a view, or returns t itself.
func contiguous(what string, t tensor.Tensor) (*tensor.Dense, error) {
	dense, ok := t.(*tensor.Dense)
	if !ok {
		return nil, inputError(what, t, "%T is not a dense tensor", t)
	}
	if dense.RequiresIterator() || dense.DataOrder().IsColMajor() {
		dense, ok = dense.Materialize().(*tensor.Dense)
		if ok && dense.DataOrder().IsColMajor() {
			dense, ok = rowMajorCopy(dense), true
		}
		if !ok {
			return nil, inputError(what, t, "the view can't be copied")
		}
	}
	if dense.IsScalar() {
		return nil, inputError(what, t, "a scalar has no samples")
	}
	return dense, nil
}

// rowMajorCopy copies a column-major tensor element by element, in logical order.
func rowMajorCopy(d *tensor.Dense) *tensor.Dense {
	out := tensor.New(tensor.Of(d.Dtype()), tensor.WithShape(d.Shape()...))
	idx := make([]int, d.Dims())
	for i := range d.Shape().TotalSize() {
		r := i
		for k := d.Dims() - 1; k >= 0; k-- {
			idx[k] = r % d.Shape()[k]
			r /= d.Shape()[k]
		}
		v, err := d.At(idx...)
		if err != nil {
			panic(fmt.Sprintf("dp: %v is in no %v: %v", idx, d.Shape(), err))
		}
		out.Set(i, v)
	}
	return out
}

type number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

func convert[T number](dst *[]float32, x []T) {
	*dst = resize(*dst, len(x))
	for i, v := range x {
		(*dst)[i] = float32(v)
	}
}

// narrow returns the index of the first element that does not fit, or -1.
func narrow[T number](dst *[]int32, x []T) int {
	*dst = resize(*dst, len(x))
	for i, v := range x {
		n := int32(v)
		if T(n) != v || (n < 0) != (v < 0) {
			return i
		}
		(*dst)[i] = n
	}
	return -1
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
