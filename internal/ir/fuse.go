package ir

import (
	"fmt"
	"iter"
	"slices"
)

// unit is a step in the making: the values that one step computes together.
type unit struct {
	op      Op       // Fused, Copy, or the op of a value that needs a step of its own
	root    *Value   // the value that gives it its name; what a product or reduction computes, before any epilogue
	members []*Value // elementwise values computed in its loop, ascending by ID
	result  *Value   // not Fused: the value it leaves in memory
	bias    *view    // the epilogue's vector
	relu    bool
	mask    *view    // where it is 0 or less, so is the result
	second  *Value   // a second result: what the epilogue's Sums, Totals, Places or Losses say
	totals  bool     // it is Totals
	needs   []*Value // what it reads from memory, and what it read before a merge made it its own
	after   []*unit  // units that must run before this one though it reads nothing of theirs
	max     int      // largest ID of what it computes
	mark    int      // for searches
	pos     int      // position in the schedule
	outs    []*Value // what it leaves in memory
}

// fuser divides a graph into units.
type fuser struct {
	g         *Graph
	consumers [][]*Value // distinct users of each value
	stored    []bool
	unit      map[*Value]*unit // what computes a value; nil for views and for sources that loops make themselves
	views     map[*Value]view
	extra     []*unit // units of values that are not the graph's own
	search    int
	half      DType // in which values lie that it holds; F32 is none
	halves    map[*Value]bool
}

// fuse divides a simplified graph into units: each product, reduction, window or row op is one, taking in the elementwise
// values around it that it can compute on the way; the remaining elementwise values are gathered into loops.
func fuse(g *Graph, target Target) *fuser {
	f := &fuser{g: g, consumers: make([][]*Value, len(g.Values)), stored: make([]bool, len(g.Values)), unit: map[*Value]*unit{}, views: map[*Value]view{}}
	if target.Halves && target.Half.Half() {
		f.half, f.halves = target.Half, map[*Value]bool{}
	}
	for _, v := range g.Values {
		for _, a := range v.Args {
			if c := f.consumers[a.ID]; len(c) == 0 || c[len(c)-1] != v {
				f.consumers[a.ID] = append(c, v)
			}
		}
	}
	for _, st := range g.Stores {
		f.stored[st.Value.ID] = true
	}
	var sum *unit // the last over ranks
	for _, v := range g.Values {
		f.start(v)
		if _, ok := v.Op.(AllReduceSum); ok {
			// Ranks meet in the order in which sums were built, however their own shares are best scheduled.
			if sum != nil {
				f.unit[v].after = append(f.unit[v].after, sum)
			}
			sum = f.unit[v]
		}
	}
	for _, v := range g.Values {
		u := f.unit[v]
		if u == nil || u.root != v {
			continue
		}
		switch v.Op.(type) {
		case MatMul, Conv2d:
			f.takeEpilogue(u)
		case Reduce:
			f.takePrologue(u, v.Args[0])
		case Conv2dGradX, Conv2dGradW, Pool2d, Pool2dGrad, Softmax, SoftmaxGrad, CrossEntropy, CrossEntropyGrad:
			f.takeRounding(u)
		}
	}
	for _, v := range g.Values {
		if u := f.unit[v]; u != nil && u.root == v {
			f.takeSums(u)
			f.takePlaces(u)
			f.takeLosses(u)
			f.takeMasked(u)
		}
	}
	for _, v := range g.Values {
		if _, ok := v.Op.(Map); !ok {
			continue
		}
		for _, a := range v.Args {
			if !f.comparesLate(v, a) {
				f.merge(f.unit[a], f.unit[v])
			}
		}
	}
	return f
}

// comparesLate reports whether v, which compares a with a constant, is for another loop than the one that makes a: a is in memory anyway, and to keep
// what v says, until a gradient asks for it, would take as much again.
func (f *fuser) comparesLate(v, a *Value) bool {
	if !isMap(v, Le) || v.Args[0] != a || f.only(v) == nil {
		return false
	}
	if _, ok := constOf(v.Args[1]); !ok {
		return false
	}
	return f.stored[a.ID] || slices.ContainsFunc(f.consumers[a.ID], func(c *Value) bool {
		_, loop := c.Op.(Map)
		return !loop
	})
}

// start gives v the unit that computes it alone, and its view.
func (f *fuser) start(v *Value) {
	own := func(op Op) {
		u := &unit{op: op, root: v, max: v.ID}
		if _, ok := op.(Fused); ok {
			u.members = []*Value{v}
		} else {
			u.result = v
		}
		f.unit[v] = u
	}
	f.views[v] = wholeView(v)
	switch v.Op.(type) {
	case Reshape, Transpose, Slice, Broadcast:
		w, ok := f.views[v.Args[0]].through(v.Op, v.Shape)
		if ok {
			f.views[v] = w
			f.needStorage(w.base)
			return
		}
		f.needStorage(f.views[v.Args[0]].base)
		own(Copy{})
	case Read, Data, Const, Iota, Rand:
		if f.stored[v.ID] {
			f.needStorage(v)
		}
	case Map:
		own(Fused{})
	default:
		own(v.Op)
		for _, a := range v.Args {
			w := f.views[a]
			if !strided(v.Op) && !w.contiguous() {
				// The op wants it contiguous.
				c := &unit{op: Copy{}, root: a, result: a, max: a.ID}
				f.needStorage(w.base)
				f.views[a] = wholeView(a)
				f.unit[a] = c
			}
			f.needStorage(f.views[a].base)
		}
	}
}

// strided reports whether op takes its arguments with any strides.
func strided(op Op) bool {
	switch op.(type) {
	case MatMul, Concat, Unslice, Reduce, AllReduceSum:
		return true
	}
	return false
}

// needStorage makes a loop for a source that something other than a loop wants in memory.
func (f *fuser) needStorage(v *Value) {
	if f.unit[v] != nil {
		return
	}
	switch v.Op.(type) {
	case Iota, Rand:
	case Const:
		if v.Shape.Size() <= maxConst {
			return
		}
	default:
		return
	}
	f.unit[v] = &unit{op: Fused{}, root: v, members: []*Value{v}, max: v.ID}
}

// maxConst is the size up to which a constant tensor is kept in the Consts region rather than filled in each step.
const maxConst = 1 << 14

// only returns the single user of v, if v is used once and not stored.
func (f *fuser) only(v *Value) *Value {
	if c := f.consumers[v.ID]; len(c) == 1 && !f.stored[v.ID] {
		return c[0]
	}
	return nil
}

// takeEpilogue lets a product add a bias and apply relu before it writes.
func (f *fuser) takeEpilogue(u *unit) {
	axis := len(u.root.Shape) - 1
	if conv, ok := u.root.Op.(Conv2d); ok {
		axis = conv.Conv.Channels()
	}
	if add := f.only(u.result); add != nil && isMap(add, Add) && f.unit[add].root == add { // no other product has taken it
		other := add.Args[0]
		if other == u.result {
			other = add.Args[1]
		}
		if w, ok := vectorAlong(f.views[other], axis); ok && other != u.result && f.inMemory(w.base) && f.unit[w.base] != u {
			u.bias = &w
			f.take(u, add)
		}
	}
	f.takeRounding(u)
	if r := f.only(u.result); r != nil && isMap(r, Relu) {
		u.relu = true
		f.take(u, r)
	}
	if _, ok := u.root.Op.(MatMul); ok && !u.relu {
		f.takeMask(u)
	}
	f.takeRounding(u)
}

// takeMask lets a product be 0 where relu's result was: where(y <= 0, 0, product) is the gradient of y = relu(x).
func (f *fuser) takeMask(u *unit) {
	w := f.only(u.result)
	if w == nil || !isMap(w, Where) || w.Args[2] != u.result || !isConst(w.Args[1], 0) {
		return
	}
	le := w.Args[0]
	if !isMap(le, Le) || !isConst(le.Args[1], 0) || !f.inMemory(f.views[le.Args[0]].base) {
		return
	}
	for _, c := range f.consumers[w.ID] {
		if _, ok := c.Op.(Map); ok {
			return // there will be a loop anyway, which can do that too
		}
	}
	y := f.views[le.Args[0]]
	u.mask = &y
	f.take(u, w)
	if f.only(le) != nil {
		delete(f.unit, le)
	}
}

// takeSums lets a product compute the sums of the rows of its first operand beside it, where the sums are a reduction of their own: so
// the gradient of a bias comes of the product that makes that of the weight.
func (f *fuser) takeSums(r *unit) {
	op, ok := r.op.(Reduce)
	if !ok || op.Fn != Sum || len(r.members) > 0 || len(op.Axes) != 1 || len(r.root.Args[0].Shape) != 2 || r.root.DType != F32 {
		return
	}
	over := f.views[r.root.Args[0]]
	if over.base.DType != F32 {
		return
	}
	if f.takeTotals(r, op, over) {
		return
	}
	rows, columns := 1-op.Axes[0], op.Axes[0]
	for _, c := range f.g.Values {
		u := f.unit[c]
		if _, ok := c.Op.(MatMul); !ok || u == nil || u.root != c || u.second != nil || len(c.Shape) != 2 {
			continue
		}
		a := f.views[c.Args[0]]
		if a.base != over.base || a.offset != over.offset || a.shape[0] != over.shape[rows] || a.shape[1] != over.shape[columns] ||
			a.strides[0] != over.strides[rows] || a.strides[1] != over.strides[columns] {
			continue
		}
		if f.search++; f.reaches(u, r) {
			continue // the product needs the sums
		}
		f.takeSecond(u, r.root)
		u.max = max(u.max, r.max)
		return
	}
}

// takeTotals lets a product with a mask sum up the columns of its result, where that lies as halves: such a mask is a pass of its own over what the product
// left, and sums cost it nothing. Of float32 the sums are better made beside the product that reads them, where there are ways to do so.
func (f *fuser) takeTotals(r *unit, op Reduce, over view) bool {
	u := f.unit[over.base]
	if u == nil || u.mask == nil || u.result != over.base || u.second != nil || !over.whole() || !over.shape.Equal(over.base.Shape) || op.Axes[0] != 0 || !f.holdsHalves(over.base) {
		return false
	}
	if _, ok := u.op.(MatMul); !ok {
		return false
	}
	f.takeSecond(u, r.root)
	u.totals = true
	return true
}

// takeMasked lets the gradient by the filters of images of one channel apply the mask of relu's gradient to dy, and sum dy up to a bias's gradient:
// memory's speed limits all three, and together they read dy once and write it never.
func (f *fuser) takeMasked(u *unit) {
	conv, ok := u.root.Op.(Conv2dGradW)
	if !ok || !conv.Conv.ChannelsLast || u.root.Args[0].Shape[3] != 1 {
		return
	}
	dy := u.root.Args[1]
	if !isMap(dy, Where) || f.stored[dy.ID] || !isConst(dy.Args[1], 0) {
		return
	}
	le, g := dy.Args[0], dy.Args[2]
	if !isMap(le, Le) || !isConst(le.Args[1], 0) || !f.inMemory(f.views[le.Args[0]].base) || !f.views[le.Args[0]].whole() {
		return
	}
	// What is masked is nobody else's, and in memory in any case.
	if by := f.unit[g]; by == nil || isFused(by) || by.result != g || f.only(g) != dy || g.DType != F32 || f.unit[dy].root != dy {
		return
	}
	var sums *Value
	for _, c := range f.consumers[dy.ID] {
		op, reduces := c.Op.(Reduce)
		switch {
		case c == u.root:
		case reduces && op.Fn == Sum && slices.Equal(op.Axes, []int{0, 1, 2}) && sums == nil && f.unit[c].root == c && len(f.unit[c].members) == 0:
			sums = c
		default:
			return
		}
	}
	y := f.views[le.Args[0]]
	u.mask = &y
	delete(f.unit, dy)
	f.views[dy] = wholeView(g)
	if f.only(le) != nil {
		delete(f.unit, le)
	}
	if sums != nil {
		f.takeSecond(u, sums)
		u.max = max(u.max, sums.ID)
	}
}

// takePlaces lets a max pooling write the places of what it finds beside that.
func (f *fuser) takePlaces(u *unit) {
	pool, ok := u.root.Op.(Pool2d)
	if !ok || pool.Mode != MaxPool {
		return
	}
	for _, c := range f.consumers[u.root.Args[0].ID] {
		if op, ok := c.Op.(PoolPlaces); ok && op.Pool == pool.Pool && f.unit[c].root == c {
			f.takeSecond(u, c)
			return
		}
	}
}

// takeLosses lets the gradient of cross entropies compute these as well, in one pass over the logits, where it does not need them first.
func (f *fuser) takeLosses(u *unit) {
	grad, ok := u.root.Op.(CrossEntropyGrad)
	if !ok {
		return
	}
	for _, c := range f.consumers[u.root.Args[0].ID] {
		l := f.unit[c]
		if op, ok := c.Op.(CrossEntropy); !ok || op != CrossEntropy(grad) || l.result != c || !slices.Equal(c.Args, u.root.Args[:len(c.Args)]) {
			continue
		}
		if f.search++; !f.reaches(u, l) {
			f.takeSecond(u, c)
		}
		return
	}
}

// takeSecond makes v, which had a unit of its own, a unit's second result.
func (f *fuser) takeSecond(u *unit, v *Value) {
	u.second = v
	f.unit[v] = u
}

// takeRounding lets a step write its result as halves.
func (f *fuser) takeRounding(u *unit) {
	if !f.half.Half() {
		return
	}
	if r := f.only(u.result); r != nil && isMap(r, Rounding(f.half)) {
		f.take(u, r)
	}
}

// holdsHalves reports whether v, which a unit computes, is to lie in memory as halves.
func (f *fuser) holdsHalves(v *Value) bool {
	if !f.half.Half() || v.DType != F32 || f.unit[v] == nil {
		return false
	}
	is, ok := f.halves[v]
	if !ok {
		is = holds(f.half, v)
		f.halves[v] = is
	}
	return is
}

func (f *fuser) take(u *unit, v *Value) {
	u.result = v
	f.unit[v] = u
	u.max = max(u.max, v.ID)
}

// inMemory reports whether v lies in memory for others to read.
func (f *fuser) inMemory(v *Value) bool {
	switch v.Op.(type) {
	case Read, Data:
		return true
	}
	return f.unit[v] != nil
}

// vectorAlong gives the vector that w repeats in all dimensions but axis.
func vectorAlong(w view, axis int) (view, bool) {
	for i, st := range w.strides {
		if i != axis && w.shape[i] != 1 && st != 0 {
			return w, false
		}
	}
	if w.shape[axis] != 1 && w.strides[axis] != 1 {
		return w, false
	}
	return view{w.base, w.offset, Of(w.shape[axis]), []int{1}}, true
}

// takePrologue lets a reduction compute v, and what only v needs, on the way.
func (f *fuser) takePrologue(u *unit, v *Value) {
	if _, ok := v.Op.(Map); !ok || f.only(v) == nil || f.unit[v].root != v {
		return
	}
	u.members = append(u.members, v)
	f.unit[v] = u
	for _, a := range v.Args {
		f.takePrologue(u, a)
	}
	slices.SortFunc(u.members, func(a, b *Value) int { return a.ID - b.ID })
}

// merge makes one loop of two where that leaves the order of units free of cycles.
func (f *fuser) merge(a, b *unit) {
	if a == nil || b == nil || a == b || !isFused(a) || !isFused(b) || !a.root.Shape.Equal(b.root.Shape) {
		return
	}
	for _, m := range b.members {
		for _, x := range m.Args {
			// Through a view, an element needs others than its own of what a computes.
			if f.unit[x] != a && f.unit[f.views[x].base] == a {
				return
			}
		}
	}
	f.search++
	for p := range f.preds(b) {
		if p != a && f.reaches(p, a) {
			return
		}
	}
	a.needs = append(f.needsOf(a), f.needsOf(b)...)
	a.members = append(a.members, b.members...)
	slices.SortFunc(a.members, func(x, y *Value) int { return x.ID - y.ID })
	a.max = max(a.max, b.max)
	for _, v := range b.members {
		f.unit[v] = a
	}
}

func isFused(u *unit) bool { _, ok := u.op.(Fused); return ok }

// reaches reports whether target must run before u. Units not yet marked with this search are followed.
func (f *fuser) reaches(u, target *unit) bool {
	if u == target {
		return true
	}
	if u.mark == f.search {
		return false
	}
	u.mark = f.search
	for p := range f.preds(u) {
		if f.reaches(p, target) {
			return true
		}
	}
	return false
}

// needsOf lists the values that u reads from memory. From the first call on u only grows by merging.
func (f *fuser) needsOf(u *unit) []*Value {
	if u.needs == nil {
		u.needs = make([]*Value, 0, 4)
		for _, w := range f.loads(u) {
			u.needs = append(u.needs, w.base)
		}
	}
	return u.needs
}

// loads lists the values that u reads from memory, as views.
func (f *fuser) loads(u *unit) []view {
	var out []view
	see := func(a *Value) {
		if s, ok := f.scalar(u, a); ok {
			for _, w := range f.scalarLoads(s, nil) {
				out = append(out, w.repeated(f.loopShape(u)))
			}
			return
		}
		if f.unit[a] == u && u.result != a || f.inlined(u, a) {
			return
		}
		out = append(out, f.views[a])
	}
	if !isFused(u) {
		if _, ok := u.op.(Copy); ok {
			// A copy makes the contiguous form of a view.
			out = append(out, f.copySource(u))
		} else {
			for _, a := range u.root.Args {
				see(a)
			}
		}
	}
	for _, m := range u.members {
		for _, a := range m.Args {
			see(a)
		}
	}
	if u.bias != nil {
		out = append(out, *u.bias)
	}
	if u.mask != nil {
		out = append(out, *u.mask)
	}
	return out
}

// copySource is the strided view that a copy unit makes contiguous.
func (f *fuser) copySource(u *unit) view {
	w, ok := f.views[u.root.Args[0]].through(u.root.Op, u.root.Shape)
	if !ok {
		// A reshape that strides can't express: the copy runs over the argument's shape, in the same order.
		return f.views[u.root.Args[0]]
	}
	return w
}

// inlined reports whether u's loop makes a itself instead of loading it.
func (f *fuser) inlined(u *unit, a *Value) bool {
	if _, reduces := u.op.(Reduce); !reduces && !isFused(u) {
		return false // it has no loop
	}
	switch a.Op.(type) {
	case Const, Iota, Rand:
		return true
	}
	return false
}

// preds yields the units that must run before u, some of them more than once.
func (f *fuser) preds(u *unit) iter.Seq[*unit] {
	return func(yield func(*unit) bool) {
		for _, v := range f.needsOf(u) {
			if p := f.unit[v]; p != nil && p != u && !yield(p) {
				return
			}
		}
		for _, p := range u.after {
			if !yield(p) {
				return
			}
		}
	}
}

// addUnit adds a unit that computes a value which is not the graph's own.
func (f *fuser) addUnit(u *unit) {
	f.unit[u.result] = u
	f.views[u.result] = wholeView(u.result)
	f.extra = append(f.extra, u)
}

// units lists all units, by the smallest ID of what they compute.
func (f *fuser) units() []*unit {
	out := slices.Clone(f.extra)
	seen := map[*unit]bool{}
	for _, v := range f.g.Values {
		if u := f.unit[v]; u != nil && !seen[u] {
			seen[u] = true
			out = append(out, u)
		}
	}
	return out
}

// schedule orders the units: each after what it depends on; pick chooses among those that could run next.
func (f *fuser) schedule(pick func(ready []*unit) int) ([]*unit, error) {
	units := f.units()
	waits := map[*unit]int{}
	next := map[*unit][]*unit{}
	for _, u := range units {
		seen := map[*unit]bool{}
		for p := range f.preds(u) {
			if !seen[p] {
				seen[p] = true
				waits[u]++
				next[p] = append(next[p], u)
			}
		}
	}
	var ready, order []*unit
	for _, u := range units {
		if waits[u] == 0 {
			ready = append(ready, u)
		}
	}
	for len(ready) > 0 {
		best := pick(ready)
		u := ready[best]
		ready = slices.Delete(ready, best, best+1)
		u.pos = len(order)
		order = append(order, u)
		for _, n := range next[u] {
			if waits[n]--; waits[n] == 0 {
				ready = append(ready, n)
			}
		}
	}
	if len(order) != len(units) {
		return nil, fmt.Errorf("ir: schedule: %d of %d steps wait for each other", len(units)-len(order), len(units))
	}
	return order, nil
}
