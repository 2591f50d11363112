package ir

// Span is the life of a value in the Work region, from the step that makes it to the last that reads it; or to the one before, where the step
// puts its result in the value's place.
type Span struct {
	Offset, Bytes int
	From, To      int // steps
}

// Spans lists the lives of the values that p keeps between its steps, in the order in which they are made.
func (p *Program) Spans() (list []Span) {
	r, ok := newRecomputer(p)
	if !ok {
		return nil
	}
	for _, k := range r.values {
		s := Span{k.lo, k.hi - k.lo, k.maker, k.maker}
		if n := len(k.reads); n > 0 {
			s.To = k.reads[n-1]
		}
		for i := range list {
			if o := &list[i]; o.To == s.From && o.From < s.From && o.Offset < s.Offset+s.Bytes && s.Offset < o.Offset+o.Bytes {
				o.To--
			}
		}
		list = append(list, s)
	}
	return list
}

// Title says what a step does, and for which part of the model.
func (s *Step) Title() string {
	if s.Name == "" {
		return opName(s.Op)
	}
	return s.Name + " (" + opName(s.Op) + ")"
}
