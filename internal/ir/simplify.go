package ir

import (
	"fmt"
	"slices"
	"strings"
)

// simplify rebuilds g with constants folded, identities removed and equal values shared. Values that no store needs are left
// out. checks collects the CheckIndex ops that stand directly on an input: they become the caller's.
func simplify(g *Graph, checks *[]Check) (*Graph, error) {
	s := &simplifier{seen: map[string]*Value{}, uses: map[*Value]int{}, checks: checks}
	uses := useCounts(g)
	to := make([]*Value, len(g.Values))
	for _, v := range g.Values {
		if uses[v.ID] == 0 {
			continue
		}
		args := make([]*Value, len(v.Args))
		for i, a := range v.Args {
			args[i] = to[a.ID]
		}
		s.out.SetScope(v.Name)
		to[v.ID] = s.emit(v.Op, v.Shape, args...)
		s.uses[to[v.ID]] += uses[v.ID]
	}
	s.out.SetScope("")
	for _, st := range g.Stores {
		s.out.Store(st.Slot, to[st.Value.ID])
	}
	s.out.sweep()
	return &s.out, s.out.Err()
}

// sweep drops values that no store needs, and numbers the rest anew.
func (g *Graph) sweep() {
	uses := useCounts(g)
	kept := g.Values[:0]
	for _, v := range g.Values {
		if uses[v.ID] > 0 {
			kept = append(kept, v)
		}
	}
	clear(g.Values[len(kept):])
	g.Values = kept
	for i, v := range kept {
		v.ID = i
	}
}

// useCounts counts, for each value that a store needs, its uses by such values and by stores.
func useCounts(g *Graph) []int {
	uses := make([]int, len(g.Values))
	for _, st := range g.Stores {
		uses[st.Value.ID]++
	}
	for i := len(g.Values) - 1; i >= 0; i-- {
		if uses[i] > 0 {
			for _, a := range g.Values[i].Args {
				uses[a.ID]++
			}
		}
	}
	return uses
}

type simplifier struct {
	out    Graph
	seen   map[string]*Value
	uses   map[*Value]int // how often the old graph uses what a new value stands for
	checks *[]Check
}

// emit gives a value equal to op on args, an earlier one where there is one.
func (s *simplifier) emit(op Op, shape Shape, args ...*Value) *Value {
	if v := s.rewrite(op, shape, args); v != nil {
		return v
	}
	if m, ok := op.(Map); ok && commutes(m.Fn) && args[0].ID > args[1].ID {
		args[0], args[1] = args[1], args[0]
	}
	var key strings.Builder
	fmt.Fprintf(&key, "%T%v%v", op, op, shape)
	for _, a := range args {
		fmt.Fprintf(&key, ",%d", a.ID)
	}
	if v, ok := s.seen[key.String()]; ok {
		return v
	}
	v := s.out.Add(op, shape, args...)
	s.seen[key.String()] = v
	return v
}

func commutes(f Fn) bool {
	switch f {
	case Add, Mul, Max, Min, Eq, Ne:
		return true
	}
	return false
}

func constOf(v *Value) (float64, bool) {
	c, ok := v.Op.(Const)
	return c.Value, ok
}

func isMap(v *Value, f Fn) bool {
	m, ok := v.Op.(Map)
	return ok && m.Fn == f
}

func isConst(v *Value, x float64) bool {
	c, ok := constOf(v)
	return ok && c == x
}

// rewrite returns a simpler value equal to op on args, or nil.
func (s *simplifier) rewrite(op Op, shape Shape, args []*Value) *Value {
	switch op := op.(type) {
	case Map:
		return s.rewriteMap(op, shape, args)
	case Reshape, Broadcast, Transpose, Slice:
		return s.rewriteView(op, shape, args[0])
	case Unslice:
		if args[0].Shape.Equal(shape) {
			return args[0]
		}
	case Concat:
		if len(args) == 1 {
			return args[0]
		}
	case Reduce:
		return s.rewriteReduce(op, shape, args[0])
	case CheckIndex:
		if r, ok := args[0].Op.(Read); ok && r.Slot.Region == Input {
			check := Check{r.Slot, op}
			if !slices.Contains(*s.checks, check) {
				*s.checks = append(*s.checks, check)
			}
			return args[0]
		}
	}
	return nil
}

func (s *simplifier) rewriteMap(op Map, shape Shape, args []*Value) *Value {
	var c [3]float64
	folds := op.Fn != Float
	for i, a := range args {
		x, ok := constOf(a)
		c[i], folds = x, folds && ok
	}
	if folds {
		return s.emit(Const{op.Fn.Eval(c[0], c[1], c[2])}, shape)
	}
	a := args[0]
	switch op.Fn {
	case RoundBF16:
		if holds(BF16, a) {
			return a
		}
	case RoundF16:
		if holds(F16, a) {
			return a
		}
	case Neg:
		if isMap(a, Neg) {
			return a.Args[0]
		}
	case Add:
		switch {
		case isConst(a, 0):
			return args[1]
		case isConst(args[1], 0):
			return a
		}
	case Sub:
		if isConst(args[1], 0) {
			return a
		}
	case Mul:
		if v := s.joinScales(shape, args[0], args[1]); v != nil {
			return v
		}
		switch {
		case isConst(a, 1):
			return args[1]
		case isConst(args[1], 1):
			return a
		case positivePart(a, args[1]):
			return s.emit(Map{Relu}, shape, a)
		case positivePart(args[1], a):
			return s.emit(Map{Relu}, shape, args[1])
		}
	case Div:
		if isConst(args[1], 1) {
			return a
		}
	case Where:
		if v := s.maskPooled(shape, a, args[1], args[2]); v != nil {
			return v
		}
		return s.maskDropped(shape, a, args[1], args[2])
	case Pow:
		switch {
		case isConst(args[1], 1):
			return a
		case isConst(args[1], 2):
			return s.emit(Map{Square}, shape, a)
		case isConst(args[1], 0.5):
			return s.emit(Map{Sqrt}, shape, a)
		case isConst(args[1], -1):
			return s.emit(Map{Recip}, shape, a)
		}
	}
	return nil
}

// maskPooled moves the mask of a ReLU's gradient from before a max pooling to after it, where there is less to mask: the largest of a window
// has a gradient where it is positive, and others have none.
func (s *simplifier) maskPooled(shape Shape, mask, zero, dx *Value) *Value {
	op, ok := dx.Op.(Pool2dGrad)
	if !ok || op.Mode != MaxPool || s.uses[dx] != 1 || !isConst(zero, 0) || !isMap(mask, Le) || mask.Args[0] != dx.Args[0] || !isConst(mask.Args[1], 0) {
		return nil
	}
	dy := dx.Args[1]
	y := s.emit(Pool2d{Mode: MaxPool, Pool: op.Pool}, dy.Shape, dx.Args[0])
	none := s.emit(Const{0}, dy.Shape)
	return s.emit(op, shape, dx.Args[0], s.emit(Map{Where}, dy.Shape, s.emit(Map{Le}, dy.Shape, y, none), none, dy))
}

// maskDropped makes one mask of two, of a ReLU's gradient behind a dropout's: where y, what the dropout left of x, is positive, x is, and was kept. So
// nobody needs to remember what was dropped.
func (s *simplifier) maskDropped(shape Shape, mask, zero, dx *Value) *Value {
	if !isConst(zero, 0) || !isMap(mask, Le) || !isConst(mask.Args[1], 0) || !isMap(dx, Where) || !isConst(dx.Args[1], 0) {
		return nil
	}
	x, dropped := mask.Args[0], dx.Args[0]
	scaled := func(v *Value) bool { // x, multiplied by what leaves no positive number 0
		if !isMap(v, Mul) {
			return false
		}
		for i, a := range v.Args {
			if c, ok := constOf(v.Args[1-i]); ok && a == x && c >= 1 {
				return true
			}
		}
		return false
	}
	for _, y := range s.out.Values {
		if isMap(y, Where) && y.Args[0] == dropped && isConst(y.Args[1], 0) && scaled(y.Args[2]) {
			return s.emit(Map{Where}, shape, s.emit(Map{Le}, shape, y, zero), zero, dx.Args[2])
		}
	}
	return nil
}

// joinScales turns (x*s)*t, of which s and t are repeated scalars, into x*(s*t), where x*s has no other use: one product an
// element less.
func (s *simplifier) joinScales(shape Shape, a, b *Value) *Value {
	t, inner := s.scalar(b), a
	if t == nil {
		t, inner = s.scalar(a), b
	}
	if t == nil || !isMap(inner, Mul) || s.uses[inner] != 1 {
		return nil
	}
	x, u := inner.Args[0], s.scalar(inner.Args[1])
	if u == nil {
		x, u = inner.Args[1], s.scalar(inner.Args[0])
	}
	if u == nil || s.scalar(x) != nil {
		return nil
	}
	both := s.emit(Map{Mul}, Of(), u, t)
	ones := make(Shape, len(shape))
	for i := range ones {
		ones[i] = 1
	}
	return s.emit(Map{Mul}, shape, x, s.emit(Broadcast{}, shape, s.emit(Reshape{}, ones, both)))
}

// scalar returns the scalar that v repeats in every element, or nil.
func (s *simplifier) scalar(v *Value) *Value {
	switch op := v.Op.(type) {
	case Const:
		if v.Shape.Size() > 1 {
			return s.emit(op, Of())
		}
	case Broadcast:
		if a := v.Args[0]; a.Shape.Size() == 1 {
			return s.emit(Reshape{}, Of(), a)
		}
	}
	return nil
}

// positivePart reports whether mask is x > 0 (or >= 0), so that x * mask is relu(x).
func positivePart(x, mask *Value) bool {
	m, ok := mask.Op.(Map)
	return ok && (m.Fn == Gt || m.Fn == Ge) && mask.Args[0] == x && isConst(mask.Args[1], 0)
}

func (s *simplifier) rewriteView(op Op, shape Shape, a *Value) *Value {
	if x, ok := constOf(a); ok {
		return s.emit(Const{x}, shape)
	}
	switch op := op.(type) {
	case Reshape:
		if a.Shape.Equal(shape) {
			return a
		}
		if _, ok := a.Op.(Reshape); ok {
			return s.emit(op, shape, a.Args[0])
		}
	case Broadcast:
		if a.Shape.Equal(shape) {
			return a
		}
		if _, ok := a.Op.(Broadcast); ok {
			return s.emit(op, shape, a.Args[0])
		}
	case Transpose:
		if slices.IsSorted(op.Perm) {
			return a
		}
		if inner, ok := a.Op.(Transpose); ok {
			perm := make([]int, len(op.Perm))
			for i, p := range op.Perm {
				perm[i] = inner.Perm[p]
			}
			return s.emit(Transpose{perm}, shape, a.Args[0])
		}
		// The transpose of a product is the product of the transposes the other way round, and those are free.
		if _, ok := a.Op.(MatMul); ok && s.uses[a] == 1 && swapsLast(op.Perm) {
			return s.emit(MatMul{}, shape, s.swapLast(a.Args[1]), s.swapLast(a.Args[0]))
		}
	case Slice:
		if a.Shape.Equal(shape) {
			return a
		}
	}
	return nil
}

func swapsLast(perm []int) bool {
	n := len(perm)
	for i, p := range perm[:n-2] {
		if p != i {
			return false
		}
	}
	return perm[n-1] == n-2
}

func (s *simplifier) swapLast(v *Value) *Value {
	n := len(v.Shape)
	perm := make([]int, n)
	shape := v.Shape.Clone()
	for i := range perm {
		perm[i] = i
	}
	perm[n-1], perm[n-2] = n-2, n-1
	shape[n-1], shape[n-2] = shape[n-2], shape[n-1]
	return s.emit(Transpose{perm}, shape, v)
}

func (s *simplifier) rewriteReduce(op Reduce, shape Shape, a *Value) *Value {
	n := 1
	for _, ax := range op.Axes {
		n *= a.Shape[ax]
	}
	if n == 1 {
		return a
	}
	if x, ok := constOf(a); ok && n > 0 {
		if op.Fn == Sum {
			x *= float64(n)
		}
		return s.emit(Const{x}, shape)
	}
	// A pooling's gradient only hands out what it is given.
	if pool, ok := a.Op.(Pool2dGrad); ok && op.Fn == Sum && pool.Pool.Padding == [2]int{} {
		if h := pool.Pool.Height(); slices.Contains(op.Axes, h) && slices.Contains(op.Axes, h+1) {
			return s.emit(op, shape, a.Args[len(a.Args)-1])
		}
	}
	// The sum of a repeated value is a multiple of it.
	if _, ok := a.Op.(Broadcast); ok && op.Fn == Sum && a.Args[0].Shape.Equal(shape) {
		return s.emit(Map{Mul}, shape, a.Args[0], s.emit(Const{float64(n)}, shape))
	}
	return nil
}
