package ir

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// Compile makes a program of parts, which run one after the other. size holds the elements of the regions that belong to the
// rank (Params, Grads, State, Buffers) and the least that Hyper, Input and Output have; Work and Consts follow from the graphs. The zero Target
// does for every device.
//
// An error is a mistake in a graph: a shape, a store that overlaps another, a slot past the end of its region.
func Compile(name string, size [NumRegions]int, target Target, parts ...Part) (*Program, error) {
	c := &compiler{p: &Program{Name: name, Size: size, Target: target}}
	graphs := make([]*part, len(parts))
	for i, pt := range parts {
		var err error
		switch {
		case pt.Graph != nil:
			graphs[i], err = c.prepare(pt.Graph)
		case pt.Collective != nil && pt.On != nil:
			err = c.slot(pt.On)
			if on := pt.On; on.Region == Grads {
				c.touches = append(c.touches, touchOf(on, c.clock, false))
			}
		default:
			err = errors.New("ir: neither a graph nor a collective on a slot")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: part %d: %w", name, i, err)
		}
	}
	buffers := c.buffers
	if target.Frugal {
		buffers = lend(buffers, loans(c.touches))
	}
	c.p.Size[Work] = plan(buffers)
	for i, pt := range parts {
		if g := graphs[i]; g != nil {
			g.emit()
			continue
		}
		o, err := exchanged(pt.Collective, pt.On)
		if err != nil {
			return nil, fmt.Errorf("%s: part %d: %w", name, i, err)
		}
		c.p.Steps = append(c.p.Steps, Step{Op: *pt.Collective, In: []Operand{o}, Out: []Operand{o}, Name: pt.On.Name})
	}
	c.p.Size[Consts] = len(c.p.Consts)
	if err := c.p.Verify(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dump("planned", c.p)
	return c.p, nil
}

// exchanged is a slot as devices exchange it, by words. Two halves are a word, whose bits others can be told but which nobody can sum.
func exchanged(op *Collective, on *Slot) (Operand, error) {
	o := Operand{on.Region, on.Offset, on.DType, Of(on.Shape.Size()), []int{1}}
	if !on.DType.Half() {
		return o, nil
	}
	if op.Kind != BroadcastFrom || on.Offset%2 != 0 || o.Shape.Size()%2 != 0 {
		return o, fmt.Errorf("ir: %s of slot %s, %s%s from %d on: halves can only be broadcast, in words of two", op.Kind, on.Name, on.DType, o.Shape, on.Offset)
	}
	return Operand{on.Region, on.Offset / 2, F32, Of(o.Shape.Size() / 2), []int{1}}, nil
}

func dump(pass string, what fmt.Stringer) {
	if os.Getenv("TANDEM_DUMP") == "ir" {
		fmt.Fprintf(os.Stderr, "-- %s\n%s\n", pass, what)
	}
}

// compiler turns parts into the steps of one program.
type compiler struct {
	p       *Program
	buffers []*buffer
	touches []touch // of the gradients' arena
	clock   int     // counts units, as the lifetimes of buffers see them
}

func (c *compiler) slot(s *Slot) error {
	if s.Offset < 0 || s.Region >= Work {
		return fmt.Errorf("ir: slot %s: no place for callers at %s+%d", s.Name, s.Region, s.Offset)
	}
	if s.DType.Half() && s.Region != Params && s.Region != Grads {
		return fmt.Errorf("ir: slot %s is %s: callers' numbers are f32 or i32", s.Name, s.DType)
	}
	switch s.Region {
	case Hyper, Input, Output:
		c.p.Size[s.Region] = max(c.p.Size[s.Region], s.End())
	default:
		if s.End()*s.DType.Size() > c.p.Size[s.Region]*wordSize {
			return fmt.Errorf("ir: slot %s ends at %d, past the %d elements of %s", s.Name, s.End(), c.p.Size[s.Region], s.Region)
		}
	}
	if !slices.Contains(c.p.Slots, s) {
		c.p.Slots = append(c.p.Slots, s)
	}
	return nil
}

// place is where a value lies: in a buffer of the work arena, or at a fixed place.
type place struct {
	buf    *buffer
	region Region
	offset int   // of a buffer 0; else in elements
	dtype  DType // of what lies at a fixed place
}

// part is the state of compiling one graph.
type part struct {
	*compiler
	f      *fuser
	places map[*Value]place
	order  []*unit
	last   map[*Value]int // the last unit, by position, that reads a value from memory
	tail   []Store        // stores that are copies at the end
}

// prepare takes a graph through the passes, up to knowing what buffers it needs and when.
func (c *compiler) prepare(g *Graph) (*part, error) {
	if err := g.Err(); err != nil {
		return nil, err
	}
	dump("built", g)
	g, err := simplify(g, &c.p.Checks)
	if err != nil {
		return nil, err
	}
	dump("simplified", g)
	if c.p.Target.Half.Half() {
		if g, err = roundOperands(g, c.p.Target, c.p.Size[Params]); err != nil {
			return nil, err
		}
		dump("rounded", g)
	}
	if c.p.Target.channelsLast() {
		if g, err = channelsLast(g, c.p.Target, &c.p.Checks); err != nil {
			return nil, err
		}
		dump("channels last", g)
	}
	for _, v := range g.Values {
		if r, ok := v.Op.(Read); ok {
			if err := c.slot(r.Slot); err != nil {
				return nil, err
			}
		}
	}
	for _, st := range g.Stores {
		if err := c.slot(st.Slot); err != nil {
			return nil, err
		}
	}
	f := fuse(g, c.p.Target)
	p := &part{compiler: c, f: f, places: map[*Value]place{}, last: map[*Value]int{}}
	for _, st := range g.Stores {
		p.store(st)
	}
	pick := builtFirst
	if c.p.Target.Frugal {
		pick = p.newLedger().cheapest
	}
	if p.order, err = f.schedule(pick); err != nil {
		return nil, err
	}
	begin := c.clock
	p.lifetimes()
	c.touches = append(c.touches, p.touches(begin)...)
	return p, nil
}

// store decides how a store happens: its value computed right in the slot, where nothing still needs what the slot held, or
// copied there at the end. What others want as halves is copied, and so is what a step rounds by storing halves.
func (p *part) store(st Store) {
	w := p.f.views[st.Value]
	if r, ok := w.base.Op.(Read); ok && w.whole() && r.Slot.Region == st.Slot.Region && r.Slot.Offset == st.Slot.Offset && r.Slot.DType == st.Slot.DType {
		return // the slot keeps what it has
	}
	u := p.f.unit[w.base]
	_, placed := p.places[w.base]
	fits := !p.f.holdsHalves(w.base) || st.Slot.DType.Half() || u != nil && isFused(u) && !p.read(w.base)
	if u != nil && !placed && w.whole() && fits && p.orderAfterChecks(u, st.Slot) && p.orderAfterReaders(u, st.Slot) {
		p.places[w.base] = place{region: st.Slot.Region, offset: st.Slot.Offset, dtype: st.Slot.DType}
		return
	}
	if r, ok := w.base.Op.(Read); ok && p.overwritten(r.Slot) {
		// The source will be gone at the end of the graph: copy it aside first.
		v := st.Value
		c := &unit{op: Copy{}, root: &Value{ID: v.ID, Op: Reshape{}, Args: []*Value{v}, Shape: v.Shape, DType: v.DType, Name: v.Name}}
		c.result, c.max = c.root, v.ID
		p.f.addUnit(c)
		for _, o := range p.f.g.Stores {
			if o.Slot.overlaps(r.Slot) && p.f.unit[p.f.views[o.Value].base] != nil {
				wr := p.f.unit[p.f.views[o.Value].base]
				wr.after = append(wr.after, c)
			}
		}
		st.Value = c.root
	}
	p.tail = append(p.tail, st)
}

// read reports whether a unit reads v from memory.
func (p *part) read(v *Value) bool {
	return slices.ContainsFunc(p.f.units(), func(u *unit) bool { return slices.Contains(p.f.needsOf(u), v) })
}

// dtype is the type in which v lies in memory.
func (p *part) dtype(v *Value) DType {
	if r, ok := v.Op.(Read); ok {
		return r.Slot.DType
	}
	pl, placed := p.places[v]
	switch {
	case placed && pl.buf == nil:
		return pl.dtype
	case p.f.holdsHalves(v):
		return p.f.half
	}
	return v.DType
}

// words is the size of v in memory.
func (p *part) words(v *Value) int {
	return (v.Shape.Size()*p.dtype(v).Size() + wordSize - 1) / wordSize
}

func (p *part) overwritten(s *Slot) bool {
	for _, st := range p.f.g.Stores {
		if st.Slot.overlaps(s) {
			return true
		}
	}
	return false
}

func readsSlot(v *Value, s *Slot) bool {
	r, ok := v.Op.(Read)
	return ok && r.Slot.overlaps(s)
}

// orderAfterReaders makes every unit that reads slot s run before u, which will write it. It reports false, and changes
// nothing, where that can't be.
func (p *part) orderAfterReaders(u *unit, s *Slot) bool {
	var before []*unit
	for _, r := range p.f.units() {
		if !slices.ContainsFunc(p.f.needsOf(r), func(v *Value) bool { return readsSlot(v, s) }) {
			continue
		}
		if r != u {
			p.f.search++
			if p.f.reaches(r, u) {
				return false
			}
			before = append(before, r)
			continue
		}
		// In place: element by element, or not at all.
		for _, w := range p.f.loads(u) {
			if readsSlot(w.base, s) && (!isFused(u) || !w.whole() || w.base.Op.(Read).Slot.Offset != s.Offset || w.base.Op.(Read).Slot.DType != s.DType || !w.shape.Equal(u.root.Shape)) {
				return false
			}
		}
	}
	u.after = append(u.after, before...)
	return true
}

// orderAfterChecks makes u, which will write slot s, run after every check that may end the step, if s is to keep its content
// then. It reports false, and changes nothing, where a check needs u.
func (p *part) orderAfterChecks(u *unit, s *Slot) bool {
	switch s.Region {
	case Params, State, Buffers:
	default:
		return true
	}
	var checks []*unit
	for _, c := range p.f.units() {
		if _, ok := c.op.(CheckIndex); !ok {
			continue
		}
		p.f.search++
		if p.f.reaches(c, u) {
			return false
		}
		checks = append(checks, c)
	}
	u.after = append(u.after, checks...)
	return true
}

// lifetimes gives every value that a unit leaves in memory, and has no place yet, a buffer.
func (p *part) lifetimes() {
	read := func(v *Value, pos int) { p.last[v] = max(p.last[v], pos) }
	for _, u := range p.order {
		for _, w := range p.f.loads(u) {
			read(w.base, u.pos)
		}
	}
	for _, st := range p.tail {
		read(p.f.views[st.Value].base, len(p.order))
	}
	for _, u := range p.order {
		u.outs = p.outputs(u)
		for _, v := range u.outs {
			if _, ok := p.places[v]; ok {
				continue
			}
			if b := p.reuse(u, v); b != nil {
				b.end = p.clock + max(p.last[v], u.pos)
				p.places[v] = place{buf: b, region: Work}
				continue
			}
			b := &buffer{size: p.words(v), start: p.clock + u.pos, end: p.clock + max(p.last[v], u.pos)}
			p.buffers = append(p.buffers, b)
			p.places[v] = place{buf: b, region: Work}
		}
	}
	p.clock += len(p.order) + 1
}

// outputs lists the values that u leaves in memory.
func (p *part) outputs(u *unit) []*Value {
	if !isFused(u) {
		if u.second != nil {
			return []*Value{u.result, u.second}
		}
		return []*Value{u.result}
	}
	var out []*Value
	for _, v := range u.members {
		_, placed := p.places[v]
		if _, read := p.last[v]; read || placed {
			out = append(out, v)
		}
	}
	return out
}

// reuse finds a buffer that u reads for the last time, element by element, so that v may take its place.
func (p *part) reuse(u *unit, v *Value) *buffer {
	if !isFused(u) {
		return nil
	}
	for _, w := range p.f.loads(u) {
		pl, ok := p.places[w.base]
		if !ok || pl.buf == nil || pl.buf.end != p.clock+u.pos || p.f.unit[w.base] == u || pl.buf.size != p.words(v) {
			continue
		}
		same := true
		for _, x := range p.f.loads(u) {
			if xp, ok := p.places[x.base]; ok && xp.buf == pl.buf && !(x.whole() && x.shape.Equal(v.Shape)) {
				same = false
			}
		}
		if same && p.dtype(w.base) == p.dtype(v) {
			return pl.buf
		}
	}
	return nil
}
