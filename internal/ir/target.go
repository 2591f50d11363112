package ir

// Target is what a program is compiled for. The zero Target does for every device.
type Target struct {
	// TF32 lets backends round the operands of products and convolutions to TF32, 10 bits of mantissa; sums stay float32.
	TF32 bool
	// Half is the 16-bit type that operands of products and convolutions are rounded to, with the results that other ones work on; F32
	// is none. Sums, and everything else, stay float32. See precision.go.
	Half DType
	// Frugal takes little memory, though fewer steps can run at the same time. See frugal.go.
	Frugal bool
	// Tight says that what backends need beside the program's values counts as well, though steps become slower by that.
	Tight bool
	// Everyone says that all ranks have samples: what is summed over those that have some is a collective of all.
	Everyone bool
	// RoundedParams, if not 0, is where a copy of the first numbers of the Params region begins in it, rounded to Half, which reaches to the
	// region's end; it is counted in elements of Half. Products read the copy of a parameter, and what a graph stores there is stored in the
	// copy, too. Whoever else writes parameters, a collective or the caller, has them stored again; see [Touch].
	RoundedParams int
	Traits
}

// hasCopy reports whether s lies where there is a copy, in a Params region of so many words.
func (t Target) hasCopy(s *Slot, words int) bool {
	return t.RoundedParams > 0 && t.Halves && s.Region == Params && s.DType == F32 && s.End() <= 2*words-t.RoundedParams
}

// copyOf is the slot of the copy of s.
func (t Target) copyOf(s *Slot) *Slot {
	return &Slot{Region: Params, Name: s.Name + " in " + t.Half.String(), Offset: t.RoundedParams + s.Offset, Shape: s.Shape, DType: t.Half}
}

// Touch stores what s has in s: where there is a copy of it, that is made anew.
func Touch(s *Slot) *Graph {
	g := &Graph{}
	g.Store(s, g.Read(s))
	return g
}

// channelsLast reports whether images are to lie with channels last.
func (t Target) channelsLast() bool { return t.ChannelsLast && (t.TF32 || t.Half != F32) }

// Traits are what passes may make use of on a device.
type Traits struct {
	// Halves: its steps take operands of 16 bits, so that rounded values lie in memory as such.
	Halves bool
	// ChannelsLast: convolutions whose operands may be rounded are faster with channels last. See layout.go.
	ChannelsLast bool
}

// TraitsOf are the traits of a device, which it tells by a method of that name and result. Without one it has none.
func TraitsOf(d Device) Traits {
	if t, ok := d.(interface{ Traits() Traits }); ok {
		return t.Traits()
	}
	return Traits{}
}
