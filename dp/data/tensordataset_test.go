package data

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"
)

func TestTensorDatasetForms(t *testing.T) {
	f := func(shape ...int) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Float32))
	}
	i := func(shape ...int) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Int32))
	}
	transposed := f(3, 4)
	if err := transposed.T(); err != nil {
		t.Fatal(err)
	}
	view := func(d *tensor.Dense, slices ...tensor.Slice) *tensor.Dense {
		v, err := d.Slice(slices...)
		if err != nil {
			t.Fatal(err)
		}
		return v.(*tensor.Dense)
	}
	for name, tt := range map[string]struct {
		x, y *tensor.Dense
		want string // part of the error, "" for success
	}{
		"labels":        {f(4, 3), i(4), ""},
		"targets":       {f(4, 1, 2, 2), f(4, 2), ""},
		"one sample":    {f(1, 1), i(1), ""},
		"rows of more":  {view(f(6, 3), tensor.S(1, 5)), i(4), ""},
		"nil x":         {nil, i(4), "the input tensor is nil"},
		"nil y":         {f(4, 3), nil, "the target tensor is nil"},
		"scalar":        {f(), i(4), "the input tensor is a scalar"},
		"lengths":       {f(4, 3), i(5), "4 inputs (shape (4, 3)) but 5 targets (shape (5))"},
		"float64":       {tensor.New(tensor.WithShape(4), tensor.Of(tensor.Float64)), i(4), "input samples are float64, want one of [float32]"},
		"int64 targets": {f(4, 3), tensor.New(tensor.WithShape(4), tensor.Of(tensor.Int64)), "target samples are int64, want one of [float32 int32]"},
		"transposed":    {transposed, i(4), "input tensor of shape (4, 3) is a view or not in row-major order"},
		"columns":       {f(4, 3), view(f(4, 3), nil, tensor.S(0, 2)), "target tensor of shape (4, 2) is a view"},
		"column-major":  {tensor.New(tensor.WithShape(2, 2), tensor.AsFortran([]float32{1, 2, 3, 4})), i(2), "not in row-major order"},
	} {
		_, err := NewTensorDataset(tt.x, tt.y)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "data: ") {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
}

func TestTensorDatasetBatch(t *testing.T) {
	ds := rows(t, 5)
	ctx := context.Background()
	x := tensor.New(tensor.WithShape(3, 2), tensor.Of(tensor.Float32))
	y := tensor.New(tensor.WithShape(3), tensor.Of(tensor.Int32))
	if err := ds.Batch(ctx, []int{4, 0, 4}, x, y); err != nil {
		t.Fatal(err)
	}
	if got := x.Data().([]float32); !slices.Equal(got, []float32{4, -4, 0, 0, 4, -4}) {
		t.Errorf("x = %v", got)
	}
	if got := y.Data().([]int32); !slices.Equal(got, []int32{4, 0, 4}) {
		t.Errorf("y = %v", got)
	}

	for _, bad := range []int{-1, 5} {
		var sample *SampleError
		if err := ds.Batch(ctx, []int{0, bad, 1}, x, y); !errors.As(err, &sample) || sample.Index != bad {
			t.Errorf("index %d: error %v", bad, err)
		}
	}
	if err := ds.Batch(ctx, []int{0, 1}, x, y); err == nil || !strings.Contains(err.Error(), "input: the batch's tensor is float32 of shape (3, 2), want 2 rows of 2 float32") {
		t.Errorf("wrong rows: error %v", err)
	}
	if err := ds.Batch(ctx, []int{0, 1, 2}, x, x); err == nil || !strings.Contains(err.Error(), "target: the batch's tensor is float32") {
		t.Errorf("wrong type: error %v", err)
	}
}
