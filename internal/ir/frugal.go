package ir

import (
	"cmp"
	"math"
	"slices"
)

// Under [Target.Frugal] steps take the order, and values the places, that need little memory. What it costs is that fewer steps are free to
// run at the same time, so it is for programs whose values are large: each of their steps keeps a card busy by itself.

// builtFirst is the order in which values were built: of the units that could run next, the one whose last value was built first.
func builtFirst(ready []*unit) int {
	best := 0
	for i, u := range ready {
		if u.max < ready[best].max {
			best = i
		}
	}
	return best
}

// ledger counts the memory that the next unit of an order takes and gives back.
type ledger struct {
	p       *part
	readers map[*Value]int // units that have still to read a value that lies in work memory
}

func (p *part) newLedger() *ledger {
	l := &ledger{p, map[*Value]int{}}
	for _, u := range p.f.units() {
		for _, v := range l.reads(u) {
			l.readers[v]++
		}
	}
	for _, st := range p.tail {
		l.readers[p.f.views[st.Value].base]++ // which comes last
	}
	return l
}

// reads are the values in work memory that a unit reads.
func (l *ledger) reads(u *unit) (list []*Value) {
	for _, w := range l.p.f.loads(u) {
		_, placed := l.p.places[w.base]
		if !placed && l.p.f.unit[w.base] != nil && l.p.f.unit[w.base] != u && !slices.Contains(list, w.base) {
			list = append(list, w.base)
		}
	}
	return list
}

// cost is the words of work memory that there are more of after a unit than before.
func (l *ledger) cost(u *unit) (words int) {
	made := u.members
	if !isFused(u) {
		made = []*Value{u.result}
		if u.second != nil {
			made = append(made, u.second)
		}
	}
	for _, v := range made {
		if _, placed := l.p.places[v]; !placed && l.readers[v] > 0 {
			words += l.p.words(v)
		}
	}
	for _, v := range l.reads(u) {
		if l.readers[v] == 1 {
			words -= l.p.words(v)
		}
	}
	return words
}

// cheapest is the unit after which the least memory is held; of equals, the one that was built first.
func (l *ledger) cheapest(ready []*unit) int {
	best, least := 0, 0
	for i, u := range ready {
		c := cmp.Or(cmp.Compare(l.cost(u), least), cmp.Compare(u.max, ready[best].max))
		if i == 0 || c < 0 {
			best, least = i, l.cost(u)
		}
	}
	for _, v := range l.reads(ready[best]) {
		l.readers[v]--
	}
	return best
}

// loan is a stretch of the gradients' arena in which values may lie until the gradient is stored there: a program that does not read it
// first overwrites what it held anyway.
type loan struct{ from, to, until int }

// touch is a use of a stretch of the gradients' arena by a program, at a moment of its clock.
type touch struct {
	from, to, at int
	stores       bool // all of it, without reading it
}

// touchOf is a use of a slot, in words: of those that it shares, with halves, only reading counts.
func touchOf(s *Slot, at int, stores bool) touch {
	size := s.DType.Size()
	from, to := s.Offset*size, s.End()*size
	if stores {
		return touch{roundUp(from, wordSize) / wordSize, to / wordSize, at, true}
	}
	return touch{from / wordSize, roundUp(to, wordSize) / wordSize, at, false}
}

// touches lists the uses that a part makes of the gradients' arena. begin is its first moment.
func (p *part) touches(begin int) (list []touch) {
	for _, u := range p.order {
		for _, w := range p.f.loads(u) {
			if r, ok := w.base.Op.(Read); ok && r.Slot.Region == Grads {
				list = append(list, touchOf(r.Slot, begin+u.pos, false))
			}
		}
		for _, v := range u.outs {
			if pl := p.places[v]; pl.buf == nil && pl.region == Grads {
				list = append(list, touchOf(&Slot{Offset: pl.offset, Shape: v.Shape, DType: pl.dtype}, begin+u.pos, true))
			}
		}
	}
	for _, st := range p.tail {
		if st.Slot.Region == Grads {
			list = append(list, touchOf(st.Slot, begin+len(p.order), true))
		}
		if r, ok := p.f.views[st.Value].base.Op.(Read); ok && r.Slot.Region == Grads {
			list = append(list, touchOf(r.Slot, begin+len(p.order), false))
		}
	}
	return list
}

// loans are the stretches that are stored in before anything else is done with them, by offset.
func loans(touches []touch) (list []loan) {
	for i, t := range touches {
		first := t.stores
		for k, o := range touches {
			if k != i && o.from < t.to && t.from < o.to && o.at <= t.at {
				first = false
			}
		}
		if first {
			list = append(list, loan{t.from, t.to, t.at})
		}
	}
	slices.SortFunc(list, func(a, b loan) int { return a.from - b.from })
	return list
}

// lend gives buffers places in stretches on loan, as far as there are any, large buffers first, and returns those without one. Of the
// places that would do, a buffer takes the one that is called back the soonest.
func lend(buffers []*buffer, loans []loan) (left []*buffer) {
	order := slices.Clone(buffers)
	slices.SortStableFunc(order, func(a, b *buffer) int { return b.size - a.size })
	var lent []*buffer
	for _, b := range order {
		at, soonest := -1, 0
		try := func(from int) {
			until, ok := covered(loans, from, from+b.size)
			if !ok || until <= b.end || at >= 0 && until >= soonest {
				return
			}
			for _, o := range lent {
				if o.offset < from+b.size && from < o.offset+o.size && o.start <= b.end && b.start <= o.end {
					return
				}
			}
			at, soonest = from, until
		}
		for _, l := range loans {
			try(align(l.from))
		}
		for _, o := range lent {
			try(align(o.offset + o.size))
		}
		if at < 0 {
			left = append(left, b)
			continue
		}
		b.offset, b.lent = at, true
		lent = append(lent, b)
	}
	return left
}

// covered reports whether a stretch is on loan, and until when all of it is.
func covered(loans []loan, from, to int) (until int, ok bool) {
	until = math.MaxInt
	for _, l := range loans {
		if l.to <= from {
			continue
		}
		if l.from > from {
			break
		}
		until = min(until, l.until)
		if from = l.to; from >= to {
			return until, true
		}
	}
	return 0, false
}
