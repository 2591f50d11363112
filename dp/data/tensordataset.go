package data

import (
	"context"
	"fmt"

	"gorgonia.org/tensor"
)

// TensorDataset is a dataset in memory: sample i is row i of two tensors.
type TensorDataset struct {
	n            int
	xSpec, ySpec Spec
	x            []float32
	y            any // []float32 or []int32
}

// NewTensorDataset makes a dataset of the rows of x, float32 of shape (n, ...),
// and y, float32 or int32 of shape (n, ...); (n) for class labels. The tensors
// must be contiguous in row-major order. They are not copied: don't change them
// while a loop runs.
func NewTensorDataset(x, y *tensor.Dense) (*TensorDataset, error) {
	fail := func(err error) (*TensorDataset, error) {
		return nil, fmt.Errorf("data: make a tensor dataset: %w", err)
	}
	xSpec, err := rowSpec("input", x)
	if err != nil {
		return fail(err)
	}
	ySpec, err := rowSpec("target", y)
	if err != nil {
		return fail(err)
	}
	if err := checkSpecs(xSpec, ySpec); err != nil {
		return fail(err)
	}
	n, m := x.Shape()[0], y.Shape()[0]
	if n != m {
		return fail(fmt.Errorf("%d inputs (shape %v) but %d targets (shape %v)", n, x.Shape(), m, y.Shape()))
	}
	return &TensorDataset{n: n, xSpec: xSpec, ySpec: ySpec, x: x.Data().([]float32), y: y.Data()}, nil
}

// rowSpec gives the form of a tensor's rows.
func rowSpec(what string, t *tensor.Dense) (Spec, error) {
	switch {
	case t == nil:
		return Spec{}, fmt.Errorf("the %s tensor is nil", what)
	case t.Dims() == 0:
		return Spec{}, fmt.Errorf("the %s tensor is a scalar, want a first dimension that counts samples", what)
	case t.RequiresIterator() || t.DataOrder().IsColMajor():
		return Spec{}, fmt.Errorf("the %s tensor of shape %v is a view or not in row-major order: copy its data to a new tensor first", what, t.Shape())
	}
	return Spec{Shape: t.Shape()[1:].Clone(), Dtype: t.Dtype()}, nil
}

// Len gives the number of samples.
func (d *TensorDataset) Len() int { return d.n }

// Specs give the forms of a row of each of the two tensors.
func (d *TensorDataset) Specs() (x, y Spec) { return d.xSpec, d.ySpec }

// Batch copies rows. An index out of range is a *[SampleError].
func (d *TensorDataset) Batch(_ context.Context, indices []int, x, y *tensor.Dense) error {
	for _, i := range indices {
		if i < 0 || i >= d.n {
			return &SampleError{Index: i, Err: fmt.Errorf("out of range, the dataset has %d samples", d.n)}
		}
	}
	if err := copyRows(x, d.x, indices, d.xSpec.elems()); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	var err error
	switch src := d.y.(type) {
	case []float32:
		err = copyRows(y, src, indices, d.ySpec.elems())
	case []int32:
		err = copyRows(y, src, indices, d.ySpec.elems())
	}
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return nil
}

// copyRows copies rows of n elements: row indices[i] of src to row i of dst.
func copyRows[T float32 | int32](dst *tensor.Dense, src []T, indices []int, n int) error {
	to, ok := dst.Data().([]T)
	if !ok || len(to) != len(indices)*n {
		return fmt.Errorf("the batch's tensor is %v of shape %v, want %d rows of %d %T", dst.Dtype(), dst.Shape(), len(indices), n, *new(T))
	}
	for row, i := range indices {
		copy(to[row*n:(row+1)*n], src[i*n:])
	}
	return nil
}
