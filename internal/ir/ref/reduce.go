package ref

import (
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// reduce: the sum of nothing is 0, the largest of nothing -Inf, the smallest +Inf; NaN spreads.
func reduce(op ir.Reduce, x, out tensor) {
	combine := func(a, b float64) float64 { return a + b }
	start := 0.0
	switch op.Fn {
	case ir.MaxOf:
		combine, start = func(a, b float64) float64 { return max(a, b) }, math.Inf(-1)
	case ir.MinOf:
		combine, start = func(a, b float64) float64 { return min(a, b) }, math.Inf(1)
	}
	for i := range out.x {
		out.x[i] = start
	}
	to := make([]int, len(x.shape))
	each(x.shape, func(index []int) {
		copy(to, index)
		for _, axis := range op.Axes {
			to[axis] = 0
		}
		*out.at(to...) = combine(*out.at(to...), *x.at(index...))
	})
}

func argMax(op ir.ArgMax, x, out tensor) {
	from := make([]int, len(x.shape))
	each(out.shape, func(index []int) {
		copy(from, index)
		best := 0
		largest := math.Inf(-1)
		for i := range x.shape[op.Axis] {
			from[op.Axis] = i
			if v := *x.at(from...); v > largest {
				best, largest = i, v
			}
		}
		*out.at(index...) = float64(best)
	})
}

// matMul: out[b,i,j] = sum_k x[b,i,k] y[b,k,j]; the batch dimension may be missing.
func matMul(x, y, out tensor) {
	n := len(x.shape)
	rows, inner, cols := x.shape[n-2], x.shape[n-1], y.shape[n-1]
	batches := x.shape[:n-2].Size()
	for b := range batches {
		for i := range rows {
			for j := range cols {
				sum := 0.0
				for k := range inner {
					sum += x.x[(b*rows+i)*inner+k] * y.x[(b*inner+k)*cols+j]
				}
				out.x[(b*rows+i)*cols+j] = sum
			}
		}
	}
}
