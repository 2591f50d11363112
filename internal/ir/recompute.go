package ir

import (
	"cmp"
	"slices"
)

// Recompute makes of p a program that leaves the same bits with less memory between its steps: at most budget bytes of the Work region, or as
// few as it finds where that can't be.
//
// A value that is not read for a while (an activation, between forward and backward) is dropped after the reading before, and made
// again before the next one, by the step that has made it: the same step on the same values, hence the same bits. What that step reads must be there
// still, or is made again as well. Which values are dropped is found by trying: of all that would help, the one whose dropping saves
// most memory, over the steps where there is too little, for the least time; again and again, until the program is as small as wanted.
func Recompute(p *Program, budget int64) *Program {
	if p.Bytes(Work) <= budget {
		return p
	}
	r, ok := newRecomputer(p)
	if !ok {
		return p
	}
	best, aim := p, int(budget/wordSize)
	for range mostRounds {
		clear(r.drop)
		reached := r.search(aim)
		q := r.program()
		if q.Size[Work] < best.Size[Work] {
			best = q
		}
		over := int(q.Bytes(Work)-budget) / wordSize
		switch {
		case over <= 0:
			return q
		case reached: // places do not fit together without gaps
			aim = max(aim-over, 0)
		default: // what helps to come near to too high a goal may be no help with a lower one
			aim = (aim + best.Size[Work]) / 2
		}
	}
	return best
}

// mostRounds is how often another goal is tried.
const mostRounds = 6

// kept is a value between steps: what one step leaves in the Work region, and others read.
type kept struct {
	lo, hi int // bytes of the region
	maker  int // step
	reads  []int
	// gap is the longest time, from an access to the next, in which nobody needs it. Where there is none, it is what follows the last
	// access, since the value may still be kept to make others of it again.
	gap [2]int
	// fixed values are not made again, nor is what is made of them: a step changes them in place.
	fixed bool
}

// access is an operand's value, and where in it the operand begins; value -1 is for other regions than Work.
type access struct{ value, offset int }

// recomputer looks for values to drop.
type recomputer struct {
	p       *Program
	values  []kept
	in, out [][]access // by step and operand
	again   []bool     // whether a step may be done again
	until   []int      // the first step that writes what it reads of other regions: it may be done again up to there
	cost    []int      // of a step, in bytes that memory moves in the time
	drop    []bool     // by value
}

// newRecomputer finds the values of a program. It reports false where a step reads what no step has left there as one value.
func newRecomputer(p *Program) (*recomputer, bool) {
	n := len(p.Steps)
	r := &recomputer{p: p, in: make([][]access, n), out: make([][]access, n), again: make([]bool, n), until: make([]int, n), cost: make([]int, n)}
	var current []int // the values that the region holds
	find := func(o Operand) (access, bool) {
		if o.Region != Work {
			return access{value: -1}, true
		}
		lo, hi := o.span()
		for _, v := range current {
			if k := &r.values[v]; k.lo <= lo && hi <= k.hi {
				return access{v, lo - k.lo}, true
			}
		}
		return access{value: -1}, lo == hi
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, o := range s.In {
			a, ok := find(o)
			if !ok {
				return nil, false
			}
			r.in[i] = append(r.in[i], a)
			if a.value >= 0 {
				k := &r.values[a.value]
				k.reads = append(k.reads, i)
			}
		}
		for _, o := range s.Out {
			r.out[i] = append(r.out[i], r.leaves(s, i, o, &current))
		}
	}
	for i := range p.Steps {
		r.judge(i)
	}
	for v := range r.values {
		k := &r.values[v]
		last := k.maker
		k.gap = [2]int{last, last}
		for _, at := range k.reads {
			if at-last > max(1, k.gap[1]-k.gap[0]) {
				k.gap = [2]int{last, at}
			}
			last = at
		}
		if k.gap[0] == k.gap[1] {
			k.gap = [2]int{last, n}
		}
	}
	r.drop = make([]bool, len(r.values))
	return r, true
}

// leaves notes what step i leaves in o.
func (r *recomputer) leaves(s *Step, i int, o Operand, current *[]int) access {
	if o.Region != Work {
		return access{value: -1}
	}
	lo, hi := o.span()
	if _, fused := s.Op.(Fused); !fused {
		for _, v := range *current {
			if k := &r.values[v]; k.lo <= lo && hi <= k.hi && slices.Contains(k.reads, i) { // in place
				k.fixed = true
				return access{v, lo - k.lo}
			}
		}
	}
	*current = slices.DeleteFunc(*current, func(v int) bool { return r.values[v].lo < hi && lo < r.values[v].hi })
	*current = append(*current, len(r.values))
	r.values = append(r.values, kept{lo: lo, hi: hi, maker: i})
	return access{value: len(r.values) - 1}
}

// judge finds out whether step i may be done again, until when, and what that costs.
func (r *recomputer) judge(i int) {
	s := &r.p.Steps[i]
	switch s.Op.(type) {
	case Collective, CheckIndex:
	default:
		ok := func(a access) bool { return a.value < 0 || !r.values[a.value].fixed }
		inside := func(a access) bool { return a.value >= 0 && ok(a) }
		r.again[i] = !slices.ContainsFunc(r.in[i], func(a access) bool { return !ok(a) }) && !slices.ContainsFunc(r.out[i], func(a access) bool { return !inside(a) })
	}
	r.until[i] = len(r.p.Steps)
	for j := i + 1; j < len(r.p.Steps) && r.until[i] > j; j++ {
		for _, w := range r.p.Steps[j].Out {
			if w.Region != Work && slices.ContainsFunc(s.In, w.overlaps) {
				r.until[i] = j
			}
		}
	}
	r.cost[i] = s.time()
}

// time is about how long a step takes: in bytes that are moved, where a product does so many operations in the time of one byte. Only
// comparisons matter.
func (s *Step) time() int {
	const operations = 50
	n := 0
	for _, list := range [][]Operand{s.In, s.Out} {
		for _, o := range list {
			n += o.Shape.Size() * o.DType.Size()
		}
	}
	switch s.Op.(type) {
	case MatMul:
		a := s.In[0].Shape
		n += 2 * s.Out[0].Shape.Size() * a[len(a)-1] / operations
	case Conv2d:
		w := s.In[1].Shape
		n += 2 * s.Out[0].Shape.Size() * (w.Size() / max(w[0], 1)) / operations
	}
	return n
}

// redone is a step of the new program: one of the old, on instances of its values.
type redone struct {
	step     int
	operands int // where its instances begin in draftProgram.instances: of In, then of Out
}

// lease is the time in which the new program keeps an instance of a value.
type lease struct {
	value      int
	start, end int
	in         int // the lease whose place it takes over, or -1
}

// draftProgram is the new program before it has places.
type draftProgram struct {
	steps     []redone
	instances []int // leases, -1 for other regions
	leases    []lease
	cost      int

	now   []int  // the instance of each value, -1 for none
	taken []bool // of leases
}

// operandsOf are the instances that step s reads and makes.
func (r *recomputer) operandsOf(d *draftProgram, s redone) (in, out []int) {
	n, m := len(r.in[s.step]), len(r.out[s.step])
	return d.instances[s.operands:][:n], d.instances[s.operands+n:][:m]
}

// drafter writes the new program.
type drafter struct {
	*recomputer
	*draftProgram
	at int // step of the old program
}

// draft makes, in d's memory, the new program that drops r.drop. It reports false where a value can't be made again.
func (r *recomputer) draft(d *draftProgram) bool {
	d.steps, d.instances, d.leases, d.cost, d.now = d.steps[:0], d.instances[:0], d.leases[:0], 0, d.now[:0]
	for range r.values {
		d.now = append(d.now, -1)
	}
	w := drafter{recomputer: r, draftProgram: d}
	for w.at = range r.p.Steps {
		if !w.do(w.at, true) {
			return false
		}
		for _, list := range [][]access{r.in[w.at], r.out[w.at]} {
			for _, a := range list {
				if a.value >= 0 && r.drop[a.value] && r.values[a.value].gap[0] == w.at {
					d.now[a.value] = -1
				}
			}
		}
	}
	r.takeOver(d)
	return true
}

// do appends a step, for the first time or again, after those that make again what it reads and is not there.
func (w *drafter) do(i int, first bool) bool {
	if !first && (!w.again[i] || w.at > w.until[i]) {
		return false
	}
	for _, a := range w.in[i] {
		if a.value >= 0 && w.now[a.value] < 0 && !w.do(w.values[a.value].maker, false) {
			return false
		}
	}
	pos := len(w.steps)
	w.steps = append(w.steps, redone{i, len(w.instances)})
	for _, a := range w.in[i] {
		k := -1
		if a.value >= 0 {
			k = w.now[a.value]
			w.leases[k].end = pos
		}
		w.instances = append(w.instances, k)
	}
	for _, a := range w.out[i] {
		k := -1
		switch {
		case a.value < 0:
		case first && w.now[a.value] >= 0: // in place
			k = w.now[a.value]
			w.leases[k].end = pos
		default:
			k = len(w.leases)
			w.leases = append(w.leases, lease{value: a.value, start: pos, end: pos, in: -1})
			if w.now[a.value] < 0 {
				w.now[a.value] = k
			}
		}
		w.instances = append(w.instances, k)
	}
	if !first {
		w.draftProgram.cost += w.recomputer.cost[i]
	}
	return true
}

// takeOver lets results of loops take the places of operands that are read for the last time, element by element.
func (r *recomputer) takeOver(d *draftProgram) {
	d.taken = append(d.taken[:0], make([]bool, len(d.leases))...)
	for pos, s := range d.steps {
		if _, fused := r.p.Steps[s.step].Op.(Fused); !fused {
			continue
		}
		ins, outs := r.operandsOf(d, s)
		for _, out := range outs {
			if out < 0 {
				continue
			}
			for _, in := range ins {
				if in >= 0 && !d.taken[in] && d.leases[in].end == pos && d.leases[in].start < pos && r.alike(d, s, in, out) {
					d.taken[in] = true
					d.leases[out].in = in
					break
				}
			}
		}
	}
}

// alike reports whether a result may take the place of an operand: both are whole values of one size, and element i of the one is made
// where element i of the other is read.
func (r *recomputer) alike(d *draftProgram, s redone, in, out int) bool {
	a, b := &r.values[d.leases[in].value], &r.values[d.leases[out].value]
	if a.hi-a.lo != b.hi-b.lo {
		return false
	}
	old := &r.p.Steps[s.step]
	ins, _ := r.operandsOf(d, s)
	for i, k := range ins {
		o := old.In[i]
		if k == in && (r.in[s.step][i].offset != 0 || !o.Contiguous() || !o.Shape.Equal(old.Loop.Shape) || o.Shape.Size()*o.DType.Size() != a.hi-a.lo) {
			return false
		}
	}
	return true
}

// words is the size of a value's place.
func (k *kept) words() int { return (k.hi - k.lo + wordSize - 1) / wordSize }

// excess sums, over the steps of the new program, what is kept beyond aim, in words. live is what is kept at each, in the memory given.
func (r *recomputer) excess(d *draftProgram, aim int, memory []int) (sum int, live []int) {
	live = append(memory[:0], make([]int, len(d.steps)+1)...)
	for i := range d.leases {
		l := &d.leases[i]
		n, start := align(r.values[l.value].words()), l.start
		if l.in >= 0 {
			start++ // the step itself counts for what it takes over
		}
		if start <= l.end {
			live[start] += n
			live[l.end+1] -= n
		}
	}
	now := 0
	for i := range d.steps {
		now += live[i]
		live[i] = now
		sum += max(0, now-aim)
	}
	return sum, live[:len(d.steps)]
}

// search drops values until the new program keeps at most aim words at any time. It reports false where no dropping helps any more.
func (r *recomputer) search(aim int) bool {
	var d, q draftProgram
	r.draft(&d) // with nothing dropped, as p is
	excess, live := r.excess(&d, aim, nil)
	var memory []int
	for excess > 0 {
		var best []int
		bestRate := 0.0
		for _, values := range r.candidates(&d, live, aim) {
			r.toggle(values)
			if r.draft(&q) {
				var e int
				e, memory = r.excess(&q, aim, memory)
				if rate := float64(excess-e) / float64(max(q.cost-d.cost, 1)); e < excess && rate > bestRate {
					best, bestRate = values, rate
				}
			}
			r.toggle(values)
		}
		if best == nil {
			return false
		}
		r.toggle(best)
		r.draft(&d)
		excess, live = r.excess(&d, aim, live)
	}
	return true
}

// toggle drops values, or keeps those that were dropped.
func (r *recomputer) toggle(values []int) {
	for _, v := range values {
		r.drop[v] = !r.drop[v]
	}
}

// mostTried is how many choices are tried at a time; of more those are taken that promise most.
const mostTried = 48

// candidates are values whose dropping, or keeping where they are dropped, may help: one at a time, or all of a step, for which what they
// are made of is kept only once.
func (r *recomputer) candidates(d *draftProgram, live []int, aim int) (list [][]int) {
	// How many steps before each one are too large.
	over := make([]int, len(live)+1)
	for i, n := range live {
		over[i+1] = over[i]
		if n > aim {
			over[i+1]++
		}
	}
	first := make([]int, len(r.p.Steps)+1) // where the new program does an old step for the first time
	first[len(r.p.Steps)] = len(d.steps)
	for i := len(d.steps) - 1; i >= 0; i-- {
		first[d.steps[i].step] = i
	}
	ends := make([]int, len(r.values)) // of the first instance of each value
	for i := len(d.leases) - 1; i >= 0; i-- {
		ends[d.leases[i].value] = d.leases[i].end
	}
	type choice struct {
		values  []int
		promise float64
	}
	var choices []choice
	groups := make([]choice, len(r.p.Steps))
	for v := range r.values {
		k := &r.values[v]
		cost := float64(max(r.cost[k.maker], 1))
		if r.drop[v] {
			choices = append(choices, choice{[]int{v}, float64(k.words()) / cost})
			continue
		}
		from, to := first[k.gap[0]]+1, min(first[k.gap[1]], ends[v])
		if !r.again[k.maker] || k.words() == 0 || from >= to || over[to] == over[from] {
			continue
		}
		promise := float64(k.words()*(over[to]-over[from])) / cost
		choices = append(choices, choice{[]int{v}, promise})
		g := &groups[k.maker]
		g.values, g.promise = append(g.values, v), g.promise+promise
	}
	for _, g := range groups {
		if len(g.values) > 1 {
			choices = append(choices, g)
		}
	}
	slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(b.promise, a.promise) })
	for _, c := range choices[:min(len(choices), mostTried)] {
		list = append(list, c.values)
	}
	return list
}

// program gives the new program its places.
func (r *recomputer) program() *Program {
	var d draftProgram
	r.draft(&d)
	buffers := make([]*buffer, len(d.leases))
	var all []*buffer
	for i, l := range d.leases { // the taken before their takers
		if l.in >= 0 {
			buffers[i] = buffers[l.in]
			buffers[i].end = max(buffers[i].end, l.end)
			continue
		}
		buffers[i] = &buffer{size: r.values[l.value].words(), start: l.start, end: l.end}
		all = append(all, buffers[i])
	}
	q := *r.p
	q.Size[Work] = plan(all)
	q.Steps = nil
	place := func(operands []Operand, list []access, instances []int) []Operand {
		operands = slices.Clone(operands)
		for i, k := range instances {
			if k >= 0 {
				operands[i].Offset = (buffers[k].offset*wordSize + list[i].offset) / operands[i].DType.Size()
			}
		}
		return operands
	}
	for _, s := range d.steps {
		step := r.p.Steps[s.step]
		in, out := r.operandsOf(&d, s)
		step.In, step.Out = place(step.In, r.in[s.step], in), place(step.Out, r.out[s.step], out)
		q.Steps = append(q.Steps, step)
	}
	return &q
}
