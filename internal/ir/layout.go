package ir

import "slices"

// channelsLast rebuilds a simplified graph so that images lie with channels last where convolutions and poolings work on them: those get
// windows with ChannelsLast, and what stands between them (elementwise, reductions, joins) is computed in that order, too.
//
// Every old value has up to two new ones: a plain one of its own shape, and, for an image [N,C,H,W], one of shape [N,H,W,C]. Which of them is
// made from its arguments is decided in order; the other one follows by a transpose, when something asks for it. Since most transposes meet their
// inverse, few are left: those of filters, which are small and stay in memory as they were, and those where images turn into rows of numbers.
// There a linear layer's weights are brought into the images' order, if they are less than the images.
func channelsLast(g *Graph, target Target, checks *[]Check) (*Graph, error) {
	l := &layout{
		half:       target.Half,
		simplifier: simplifier{seen: map[string]*Value{}, uses: map[*Value]int{}, checks: checks},
		old:        useCounts(g), plain: make([]*Value, len(g.Values)), last: make([]*Value, len(g.Values)), placed: make([]bool, len(g.Values)),
	}
	for _, v := range g.Values {
		l.out.SetScope(v.Name)
		l.place(v)
	}
	l.out.SetScope("")
	for _, st := range g.Stores {
		l.out.Store(st.Slot, l.asPlain(st.Value))
	}
	l.out.sweep()
	return &l.out, l.out.Err()
}

// layout is the state of the pass. Its new values are made by the simplifier, so that equal ones are shared and transposes cancel.
type layout struct {
	simplifier
	half        DType
	old         []int    // uses of the old values
	plain, last []*Value // by the old value's ID
	placed      []bool   // whether the one with channels last came first
}

// The orders of an image's dimensions, as a transpose makes one from the other.
var toLast, toPlain = []int{0, 2, 3, 1}, []int{0, 3, 1, 2}

// place makes one of v's new values from its arguments.
func (l *layout) place(v *Value) {
	switch op := v.Op.(type) {
	case Conv2d:
		if w, ok := turned(op.Conv); ok {
			l.images(v, Conv2d{w})
			return
		}
	case Conv2dGradX:
		if w, ok := turned(op.Conv); ok {
			l.images(v, Conv2dGradX{w, w.FromNCHW(op.In)})
			return
		}
	case Conv2dGradW:
		// Of one channel this takes a library ten times as long as with channels first; cards have a better kernel, but not for halves.
		if w, ok := turned(op.Conv); ok && (l.half == F32 || v.Shape[1] > 1) {
			l.images(v, Conv2dGradW{w})
			return
		}
	case Pool2d:
		if w, ok := turned(op.Pool); ok && l.anyLast(v) {
			l.images(v, Pool2d{op.Mode, w, op.OutHW})
			return
		}
	case Pool2dGrad:
		if _, ok := turned(op.Pool); ok && l.anyLast(v) {
			l.poolGrad(v, op)
			l.placed[v.ID] = true
			return
		}
	case Map:
		if l.anyLast(v) {
			l.images(v, op)
			return
		}
	case Reduce:
		if l.anyLast(v) {
			var axes []int
			for i, d := range toLast {
				if slices.Contains(op.Axes, d) {
					axes = append(axes, i)
				}
			}
			l.images(v, Reduce{op.Fn, axes})
			return
		}
	case Concat:
		if l.anyLast(v) {
			l.images(v, Concat{slices.Index(toLast, op.Axis)})
			return
		}
	case MatMul:
		if p := l.product(v); p != nil {
			l.plain[v.ID] = p
			return
		}
	}
	args := make([]*Value, len(v.Args))
	for i, a := range v.Args {
		args[i] = l.asPlain(a)
	}
	l.plain[v.ID] = l.emit(v.Op, v.Shape, args...)
}

// turned is a window with channels last. Convolutions in groups stay: libraries have few of them in that order.
func turned(w Window) (Window, bool) {
	ok := !w.ChannelsLast && w.Groups <= 1
	w.ChannelsLast = true
	return w, ok
}

// anyLast reports whether an argument lies with channels last.
func (l *layout) anyLast(v *Value) bool {
	return slices.ContainsFunc(v.Args, func(a *Value) bool { return l.placed[a.ID] })
}

// images places v with channels last.
func (l *layout) images(v *Value, op Op) {
	l.turn(v, op)
	l.placed[v.ID] = true
}

// turn makes v with channels last by an op on such arguments.
func (l *layout) turn(v *Value, op Op) {
	args := make([]*Value, len(v.Args))
	for i, a := range v.Args {
		args[i] = l.asLast(a)
	}
	l.last[v.ID] = l.emit(op, lastShape(v.Shape), args...)
}

// poolGrad makes the gradient of a pooling with channels last. That of a max pooling reads the places of what is largest, if it can, which are much
// less than the images where they were found.
func (l *layout) poolGrad(v *Value, op Pool2dGrad) {
	w, _ := turned(op.Pool)
	if op.Mode != MaxPool || !w.Places(v.Shape[1]) {
		l.turn(v, Pool2dGrad{op.Mode, w, op.OutHW, w.FromNCHW(op.In), false})
		return
	}
	shape, dy := lastShape(v.Shape), l.asLast(v.Args[1])
	words := dy.Shape.Clone()
	words[3] /= 4
	places := l.emit(PoolPlaces{w}, words, l.asLast(v.Args[0]))
	l.last[v.ID] = l.emit(Pool2dGrad{MaxPool, w, op.OutHW, [4]int(shape), true}, shape, places, dy)
}

func lastShape(s Shape) Shape { return Of(s[0], s[2], s[3], s[1]) }

// asPlain is v in its own shape.
func (l *layout) asPlain(v *Value) *Value {
	if l.plain[v.ID] == nil {
		l.plain[v.ID] = l.emit(Transpose{toPlain}, v.Shape, l.last[v.ID])
	}
	return l.plain[v.ID]
}

// asLast is an image, or something of its rank, with channels last: computed again in that order where that costs nothing, and else a transpose.
func (l *layout) asLast(v *Value) *Value {
	if l.last[v.ID] != nil {
		return l.last[v.ID]
	}
	shape := lastShape(v.Shape)
	switch op := v.Op.(type) {
	case Const:
		l.last[v.ID] = l.emit(op, shape)
	case Rand:
		if !op.ChannelsLast {
			l.last[v.ID] = l.emit(Rand{op.Stream, true}, shape)
		}
	case Broadcast, Map:
		l.turn(v, op)
	case Reshape:
		l.last[v.ID] = l.unflattened(v)
	case Pool2dGrad: // what it is made from is less
		if _, ok := turned(op.Pool); ok {
			l.poolGrad(v, op)
		}
	}
	if l.last[v.ID] == nil {
		l.last[v.ID] = l.emit(Transpose{toLast}, shape, l.asPlain(v))
	}
	return l.last[v.ID]
}

// product is a matrix product with images as rows of numbers, without bringing the images into their own order; nil where v is none. The images
// may be its left side, or its right side where they are summed over (a gradient by weights).
func (l *layout) product(v *Value) *Value {
	if len(v.Shape) != 2 {
		return nil
	}
	a, b := v.Args[0], v.Args[1]
	switch {
	case l.rows(a) && a.Shape[0] > b.Shape[1]:
		image := a.Args[0].Shape
		weights := l.swapLast(l.ordered(l.swapLast(l.asPlain(b)), image))
		return l.emit(MatMul{}, v.Shape, l.flat(a), weights)
	case l.rows(b) && b.Shape[0] > a.Shape[0]:
		s := b.Args[0].Shape
		sums := l.emit(MatMul{}, v.Shape, l.asPlain(a), l.flat(b))
		images := l.emit(Reshape{}, Of(v.Shape[0], s[2], s[3], s[1]), sums)
		return l.emit(Reshape{}, v.Shape, l.emit(Transpose{toPlain}, Of(v.Shape[0], s[1], s[2], s[3]), images))
	}
	return nil
}

// rows reports whether v is images as rows of numbers, one an image, that lie with channels last.
func (l *layout) rows(v *Value) bool {
	if _, ok := v.Op.(Reshape); !ok || len(v.Shape) != 2 {
		return false
	}
	from := v.Args[0]
	return len(from.Shape) == 4 && from.Shape[0] == v.Shape[0] && l.last[from.ID] != nil && from.Shape[2]*from.Shape[3] > 1
}

// flat is such rows in the order of the images' memory.
func (l *layout) flat(v *Value) *Value { return l.emit(Reshape{}, v.Shape, l.last[v.Args[0].ID]) }

// ordered brings weights [n, C*H*W] into the order H, W, C.
func (l *layout) ordered(w *Value, image Shape) *Value {
	n := w.Shape[0]
	filters := l.emit(Reshape{}, Of(n, image[1], image[2], image[3]), w)
	return l.emit(Reshape{}, w.Shape, l.emit(Transpose{toLast}, lastShape(filters.Shape), filters))
}

// unflattened is a matrix product, perhaps rounded, reshaped to images (a gradient by images that were rows of numbers), made with channels
// last; nil where v is none, or the weights are more than the images.
func (l *layout) unflattened(v *Value) *Value {
	p := v.Args[0]
	var maps []Op
	for {
		m, ok := p.Op.(Map)
		if !ok || len(p.Args) > 1 || l.old[p.ID] != 1 {
			break
		}
		maps, p = append(maps, m), p.Args[0]
	}
	if _, ok := p.Op.(MatMul); !ok || l.old[p.ID] != 1 || len(p.Shape) != 2 || p.Shape[0] != v.Shape[0] {
		return nil
	}
	a, b := p.Args[0], p.Args[1]
	if a.Shape[0] <= a.Shape[1] || v.Shape[2]*v.Shape[3] == 1 {
		return nil
	}
	rows := l.emit(MatMul{}, p.Shape, l.asPlain(a), l.ordered(l.asPlain(b), v.Shape))
	for _, m := range slices.Backward(maps) {
		rows = l.emit(m, rows.Shape, rows)
	}
	return l.emit(Reshape{}, lastShape(v.Shape), rows)
}
