package ref

import (
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/philox"
)

// tensor is a row-major value.
type tensor struct {
	shape ir.Shape
	x     []float64
}

// at returns a pointer to the element of that index.
func (t tensor) at(index ...int) *float64 {
	flat := 0
	for i, d := range t.shape {
		flat = flat*d + index[i]
	}
	return &t.x[flat]
}

// each calls f for every index of the shape, in row-major order. f must not keep or change index.
func each(shape ir.Shape, f func(index []int)) {
	index := make([]int, len(shape))
	for range shape.Size() {
		f(index)
		for i := len(shape) - 1; i >= 0; i-- {
			index[i]++
			if index[i] < shape[i] {
				break
			}
			index[i] = 0
		}
	}
}

func constant(op ir.Const, out tensor) {
	for i := range out.x {
		out.x[i] = op.Value
	}
}

func data(op ir.Data, out tensor) {
	for i, v := range op.Content.Floats {
		out.x[i] = float64(v)
	}
	for i, v := range op.Content.Ints {
		out.x[i] = float64(v)
	}
}

func position(op ir.Iota, out tensor) {
	each(out.shape, func(index []int) { *out.at(index...) = float64(index[op.Axis]) })
}

// random: word (first+s)*perSample+i of the stream, as a uniform; a scalar is one sample of one element.
func random(op ir.Rand, rt *ir.Runtime, out tensor) {
	perSample := 1
	if len(out.shape) > 0 {
		perSample = out.shape[1:].Size()
	}
	stream := philox.New(rt.Key(), op.Stream)
	numbering := op.Numbering(out.shape)
	each(out.shape, func(at []int) {
		word := rt.FirstSample * perSample
		for d, i := range at {
			word += i * numbering[d]
		}
		*out.at(at...) = float64(philox.Float32(stream.Uint32At(uint64(word))))
	})
}

func mapped(op ir.Map, args []tensor, out tensor) {
	var a [3]float64
	for i := range out.x {
		for k, arg := range args {
			a[k] = arg.x[i]
		}
		out.x[i] = op.Fn.Eval(a[0], a[1], a[2])
	}
}

func checkIndex(op ir.CheckIndex, x tensor) error {
	for i, v := range x.x {
		if (v < 0 || v >= float64(op.Bound)) && v != float64(op.Ignore) {
			return &ir.IndexError{What: op.What, Index: i, Value: int(v), Bound: op.Bound}
		}
	}
	return nil
}
