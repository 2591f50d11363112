package data

import (
	"context"
	"fmt"

	"gorgonia.org/tensor"
)

// Dataset is a set of samples numbered 0..Len()-1, each an input x and a target
// y. A [Loader] with prefetching calls Batch from another goroutine than the
// training loop's, and loops over one dataset at the same time call it at the
// same time.
type Dataset interface {
	// Len gives the number of samples. It must not change.
	Len() int

	// Specs give the shape and type of one sample's input and target. The input
	// is float32; the target is float32, or int32 for class labels. They must
	// not change.
	Specs() (x, y Spec)

	// Batch copies sample indices[i] to row i of x and of y. The tensors have
	// shape (len(indices), sample's shape...), are contiguous in row-major order
	// and hold old data, so every element has to be written. A sample that can't
	// be read is a *[SampleError]. A Batch that takes long should return early
	// when ctx ends: leaving a loop waits for it.
	Batch(ctx context.Context, indices []int, x, y *tensor.Dense) error
}

// Spec is the form of one sample's input or target, without the batch dimension:
// (784) or (1, 28, 28) for an image, () for a class label.
type Spec struct {
	Shape tensor.Shape
	Dtype tensor.Dtype
}

// elems gives the number of elements of one sample.
func (s Spec) elems() int {
	n := 1
	for _, d := range s.Shape {
		n *= d
	}
	return n
}

// check refuses forms that batches can't have.
func (s Spec) check(what string, types ...tensor.Dtype) error {
	for _, d := range s.Shape {
		if d <= 0 {
			return fmt.Errorf("%s samples have shape %v, want positive dimensions", what, s.Shape)
		}
	}
	for _, t := range types {
		if s.Dtype == t {
			return nil
		}
	}
	return fmt.Errorf("%s samples are %v, want one of %v", what, s.Dtype, types)
}

// checkSpecs refuses samples of forms that a Loader can't deliver.
func checkSpecs(x, y Spec) error {
	if err := x.check("input", tensor.Float32); err != nil {
		return err
	}
	return y.check("target", tensor.Float32, tensor.Int32)
}

// SampleError says which sample of a dataset could not be read, and why.
type SampleError struct {
	Index int
	Err   error
}

func (e *SampleError) Error() string { return fmt.Sprintf("sample %d: %v", e.Index, e.Err) }

func (e *SampleError) Unwrap() error { return e.Err }
