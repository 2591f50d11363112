package ref

import "github.com/tandem-train/tandem/internal/ir"

// out[i0,i1,...] = x[j] with j[perm[d]] = i[d].
func transpose(op ir.Transpose, x, out tensor) {
	from := make([]int, len(x.shape))
	each(out.shape, func(index []int) {
		for d, p := range op.Perm {
			from[p] = index[d]
		}
		*out.at(index...) = *x.at(from...)
	})
}

// sliceIndex is where Slice finds the element of that index.
func sliceIndex(start, step, index []int) []int {
	from := make([]int, len(index))
	for d := range index {
		from[d] = start[d] + step[d]*index[d]
	}
	return from
}

func slice(op ir.Slice, x, out tensor) {
	each(out.shape, func(index []int) {
		*out.at(index...) = *x.at(sliceIndex(op.Start, op.Step, index)...)
	})
}

func unslice(op ir.Unslice, x, out tensor) {
	each(x.shape, func(index []int) {
		*out.at(sliceIndex(op.Start, op.Step, index)...) = *x.at(index...)
	})
}

func broadcast(x, out tensor) {
	from := make([]int, len(x.shape))
	each(out.shape, func(index []int) {
		for d := range from {
			from[d] = min(index[d], x.shape[d]-1)
		}
		*out.at(index...) = *x.at(from...)
	})
}

func concat(op ir.Concat, args []tensor, out tensor) {
	before := 0
	for _, x := range args {
		to := make([]int, len(x.shape))
		each(x.shape, func(index []int) {
			copy(to, index)
			to[op.Axis] += before
			*out.at(to...) = *x.at(index...)
		})
		before += x.shape[op.Axis]
	}
}

// out[i...,d...] = table[indices[i...],d...].
func gather(table, indices, out tensor) {
	row := table.shape[1:].Size()
	for i, v := range indices.x {
		for d := range row {
			out.x[i*row+d] = table.x[int(v)*row+d]
		}
	}
}

// out[v,d...] = sum over the i with indices[i] = v of rows[i...,d...].
func scatterAdd(indices, rows, out tensor) {
	row := out.shape[1:].Size()
	for i, v := range indices.x {
		for d := range row {
			out.x[int(v)*row+d] += rows.x[i*row+d]
		}
	}
}
