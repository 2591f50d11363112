package ir

// view is a strided look at the storage of a base value: what a chain of view ops comes to.
type view struct {
	base    *Value
	offset  int
	shape   Shape
	strides []int
}

func wholeView(v *Value) view { return view{v, 0, v.Shape, v.Shape.Strides()} }

// repeated is the view's first element wherever one of that shape has an element.
func (w view) repeated(shape Shape) view {
	return view{w.base, w.offset, shape, make([]int, len(shape))}
}

// contiguous reports whether the view is row-major without gaps.
func (w view) contiguous() bool { return Operand{Shape: w.shape, Strides: w.strides}.Contiguous() }

// whole reports whether the view is its base's storage from start to end in row-major order.
func (w view) whole() bool {
	return w.offset == 0 && w.shape.Size() == w.base.Shape.Size() && w.contiguous()
}

// through applies a view op; ok is false for a Reshape that strides can't express.
func (w view) through(op Op, shape Shape) (r view, ok bool) {
	r = view{w.base, w.offset, shape, make([]int, len(shape))}
	switch op := op.(type) {
	case Transpose:
		for i, p := range op.Perm {
			r.strides[i] = w.strides[p]
		}
	case Slice:
		for i := range shape {
			r.offset += op.Start[i] * w.strides[i]
			r.strides[i] = op.Step[i] * w.strides[i]
		}
	case Broadcast:
		for i := range shape {
			if w.shape[i] == shape[i] {
				r.strides[i] = w.strides[i]
			}
		}
	case Reshape:
		r.strides, ok = reshapeStrides(w.shape, w.strides, shape)
		return r, ok
	}
	return r, true
}

// reshapeStrides finds strides by which the elements of a strided tensor, in row-major order, read as another shape. Runs of
// dimensions on either side with equal products are matched; each run of the old side must be evenly spaced.
func reshapeStrides(old Shape, strides []int, shape Shape) ([]int, bool) {
	out := make([]int, len(shape))
	if shape.Size() == 0 {
		return out, true
	}
	// Dimensions of extent 1 say nothing.
	var od, os []int
	for i, d := range old {
		if d != 1 {
			od, os = append(od, d), append(os, strides[i])
		}
	}
	i, j := len(od)-1, len(shape)-1
	for j >= 0 {
		if shape[j] == 1 {
			out[j] = 0
			j--
			continue
		}
		if i < 0 {
			return nil, false
		}
		// A run of old dimensions that merge: od[i-k] * ... * od[i] with os[x-1] == os[x]*od[x].
		run, unit := od[i], os[i]
		lo := i
		need := 1
		for need != run {
			if need < run {
				if j < 0 {
					return nil, false
				}
				if run%(need*shape[j]) != 0 && need*shape[j] < run {
					return nil, false
				}
				out[j] = unit * need
				need *= shape[j]
				j--
				continue
			}
			if lo == 0 || os[lo-1] != os[lo]*od[lo] {
				return nil, false
			}
			lo--
			run *= od[lo]
		}
		i = lo - 1
	}
	return out, i < 0
}

// Squeeze drops dimensions of extent 1 and joins neighbours that are one dimension for all lists of strides: where the outer stride is
// the inner stride times the inner extent. Each list is as long as shape.
func Squeeze(shape []int, strides ...[]int) (ext []int, out [][]int) {
	out = make([][]int, len(strides))
	for d, n := range shape {
		if n == 1 {
			continue
		}
		last := len(ext) - 1
		joins := last >= 0
		for i := range strides {
			joins = joins && out[i][last] == strides[i][d]*n
		}
		if joins {
			ext[last] *= n
			for i := range strides {
				out[i][last] = strides[i][d]
			}
			continue
		}
		ext = append(ext, n)
		for i := range strides {
			out[i] = append(out[i], strides[i][d])
		}
	}
	return ext, out
}
