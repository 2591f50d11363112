package data

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"gorgonia.org/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows is a dataset of n samples whose input is (i, -i) and whose label is i.
func rows(t testing.TB, n int) *TensorDataset {
	t.Helper()
	x, y := make([]float32, 2*n), make([]int32, n)
	for i := range n {
		x[2*i], x[2*i+1], y[i] = float32(i), -float32(i), int32(i)
	}
	ds, err := NewTensorDataset(
		tensor.New(tensor.WithShape(n, 2), tensor.WithBacking(x)),
		tensor.New(tensor.WithShape(n), tensor.WithBacking(y)),
	)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func newLoader(t testing.TB, ds Dataset, batchSize int, opts ...Option) *Loader {
	t.Helper()
	l, err := NewLoader(ds, batchSize, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// hooked is a dataset whose reads can be watched, held up or made to fail.
type hooked struct {
	Dataset
	before func(ctx context.Context, indices []int) error
}

func (h hooked) Batch(ctx context.Context, indices []int, x, y *tensor.Dense) error {
	if err := h.before(ctx, indices); err != nil {
		return err
	}
	return h.Dataset.Batch(ctx, indices, x, y)
}
