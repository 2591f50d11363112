package ir

import "slices"

// Rounding to halves: how Target.Half changes a graph.
//
// The types of values stay as they are. A value is rounded by a Map of RoundBF16 or RoundF16, whose result is a float32 that a half
// would hold; so the reference, the host and cards all compute the same. What is rounded:
//
//   - the operands of products and convolutions;
//   - the result of a product from which another one follows, after its bias: activations and their gradients. What ends in a store, as
//     the gradients of weights do, stays as it was summed, in float32; but those of filters are rounded, because cuDNN has no others;
//   - what comes before an operand by choice among numbers alone (relu, max-pooling, views), where nobody else needs it precise. Rounded there,
//     it needs no rounding later.
//
// The rest, softmax, losses, norms, sums and updates, is float32.
//
// On a device with Halves a value that a half holds lies in memory as one; see part.dtype. So activations take half the space and time.

// rounder rebuilds a graph with the rounding in it.
type rounder struct {
	simplifier
	target Target
	params int // size of the region
	fn     Fn
	copies map[*Slot]*Value // of parameters
	users  [][]*Value       // of the old graph
	stored []bool
	leads  []bool // whether a product follows
	early  []bool // whether to round the value for all its users, because products want it rounded and nobody minds
}

// Rounded is g as [Compile] makes it for a target with that half: a graph with the values that the program has.
func Rounded(g *Graph, half DType) (*Graph, error) {
	var checks []Check
	s, err := simplify(g, &checks)
	if err != nil {
		return nil, err
	}
	return roundOperands(s, Target{Half: half}, 0)
}

// roundOperands is the pass, for a Params region of so many words; g is simplified.
func roundOperands(g *Graph, target Target, params int) (*Graph, error) {
	n := len(g.Values)
	r := &rounder{
		simplifier: simplifier{seen: map[string]*Value{}, uses: map[*Value]int{}},
		target:     target, params: params, fn: Rounding(target.Half),
		copies: map[*Slot]*Value{}, users: make([][]*Value, n), stored: make([]bool, n), leads: make([]bool, n), early: make([]bool, n),
	}
	for _, v := range g.Values {
		for _, a := range v.Args {
			r.users[a.ID] = append(r.users[a.ID], v)
		}
	}
	for _, st := range g.Stores {
		r.stored[st.Value.ID] = true
	}
	for i := n - 1; i >= 0; i-- {
		v := g.Values[i]
		for _, u := range r.users[i] {
			r.leads[i] = r.leads[i] || isProduct(u.Op) || r.leads[u.ID]
		}
		r.early[i] = r.wanted(v)
	}
	to := make([]*Value, n)
	for _, v := range g.Values {
		args := make([]*Value, len(v.Args))
		for i, a := range v.Args {
			args[i] = to[a.ID]
			if isProduct(v.Op) || r.biased(v) >= 0 && i == 1-r.biased(v) {
				args[i] = r.operand(args[i])
			}
		}
		r.out.SetScope(v.Name)
		made := r.emit(v.Op, v.Shape, args...)
		if r.early[v.ID] || r.activation(v) {
			made = r.rounded(made)
		}
		to[v.ID] = made
	}
	r.out.SetScope("")
	for _, st := range g.Stores {
		r.out.Store(st.Slot, to[st.Value.ID])
		if r.target.hasCopy(st.Slot, r.params) {
			r.out.Store(r.target.copyOf(st.Slot), r.emit(Map{r.fn}, st.Slot.Shape, to[st.Value.ID]))
		}
	}
	r.out.sweep()
	return &r.out, r.out.Err()
}

// Rounding is the function that rounds to a half.
func Rounding(half DType) Fn {
	if half == F16 {
		return RoundF16
	}
	return RoundBF16
}

func isProduct(op Op) bool {
	switch op.(type) {
	case MatMul, Conv2d, Conv2dGradX, Conv2dGradW:
		return true
	}
	return false
}

// wanted decides whether v is rounded for all its users.
func (r *rounder) wanted(v *Value) bool {
	if v.DType != F32 || r.stored[v.ID] {
		return false
	}
	some := false
	for _, u := range r.users[v.ID] {
		switch {
		case isProduct(u.Op):
			some = true
		case chooses(u, v):
			if !r.early[u.ID] {
				return false
			}
			some = true
		case !forgives(u, v):
			return false
		}
	}
	return some
}

// chooses reports whether u takes its elements from v, or their negatives, and from nothing else but its other arguments and zeros.
func chooses(u, v *Value) bool {
	for _, a := range choices(u) {
		if a == v {
			return true
		}
	}
	return false
}

// choices are the arguments that u takes its elements from, or their negatives; it has no others but zeros. None: it computes.
func choices(u *Value) []*Value {
	switch op := u.Op.(type) {
	case Reshape, Transpose, Slice, Broadcast, Unslice, Gather:
		return u.Args[:1]
	case Concat:
		return u.Args
	case Map:
		switch op.Fn {
		case Relu, Neg, Abs, Max, Min:
			return u.Args
		case Where:
			return u.Args[1:]
		}
	case Pool2d:
		if op.Mode == MaxPool {
			return u.Args
		}
	case Pool2dGrad:
		if op.Mode == MaxPool && op.Pool.disjoint() {
			return u.Args[1:]
		}
	}
	return nil
}

// disjoint reports whether no two windows have an element in common.
func (w Window) disjoint() bool {
	for d := range 2 {
		if w.Dilation[d]*(w.Kernel[d]-1) >= w.Stride[d] {
			return false
		}
	}
	return true
}

// forgives reports whether u may as well work on the rounded v: it adds up, compares with 0, or looks for the largest.
func forgives(u, v *Value) bool {
	switch op := u.Op.(type) {
	case Reduce:
		return op.Fn == Sum
	case Map:
		switch op.Fn {
		case Gt, Ge, Lt, Le:
			return isConst(u.Args[0], 0) || isConst(u.Args[1], 0)
		}
	case Pool2dGrad:
		return op.Mode == MaxPool && u.Args[0] == v
	}
	return false
}

// biased is the argument of v that is a product to which v adds a bias, or -1.
func (r *rounder) biased(v *Value) int {
	if !isMap(v, Add) {
		return -1
	}
	for i, a := range v.Args {
		if isProduct(a.Op) && repeats(v.Args[1-i]) && len(r.users[a.ID]) == 1 && !r.stored[a.ID] && r.leads[v.ID] {
			return i
		}
	}
	return -1
}

// repeats reports whether v is the same for all rows. Of one row that is a parameter's vector as it is.
func repeats(v *Value) bool {
	if _, ok := v.Op.(Broadcast); ok {
		return true
	}
	vector := slices.Contains(v.Shape, v.Shape.Size())
	if _, ok := v.Op.(Reshape); ok {
		v = v.Args[0]
	}
	read, ok := v.Op.(Read)
	return ok && vector && read.Slot.Region == Params
}

// activation reports whether v is the result of a product, bias and all, from which another product follows, or a filter's gradient.
func (r *rounder) activation(v *Value) bool {
	if _, ok := v.Op.(Conv2dGradW); ok {
		return true
	}
	if !r.leads[v.ID] {
		return false
	}
	if isProduct(v.Op) {
		u := r.users[v.ID]
		return len(u) != 1 || r.biased(u[0]) < 0 || r.stored[v.ID]
	}
	return r.biased(v) >= 0
}

// operand is v, of the new graph, as a product takes it. Of a view, what it is a view of is rounded, for others to share.
func (r *rounder) operand(v *Value) *Value {
	switch v.Op.(type) {
	case Reshape, Transpose, Broadcast:
		return r.emit(v.Op, v.Shape, r.operand(v.Args[0]))
	}
	return r.rounded(v)
}

func (r *rounder) rounded(v *Value) *Value {
	if holds(r.target.Half, v) {
		return v
	}
	if read, ok := v.Op.(Read); ok && r.target.hasCopy(read.Slot, r.params) {
		if r.copies[read.Slot] == nil {
			r.copies[read.Slot] = r.out.Read(r.target.copyOf(read.Slot))
		}
		return r.copies[read.Slot]
	}
	return r.emit(Map{r.fn}, v.Shape, v)
}

// holds reports whether every element of v is one that half holds.
func holds(half DType, v *Value) bool {
	switch op := v.Op.(type) {
	case Read:
		return op.Slot.DType == half
	case Const:
		return Rounding(half).Eval(op.Value, 0, 0) == op.Value
	case Map:
		switch op.Fn {
		case Rounding(half), Gt, Ge, Lt, Le, Eq, Ne, Sign:
			return true
		}
	}
	from := choices(v)
	for _, a := range from {
		if a.DType != F32 || !holds(half, a) {
			return false
		}
	}
	return len(from) > 0
}
