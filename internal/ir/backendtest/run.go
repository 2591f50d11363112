package backendtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// Option says what a backend promises beyond the interface.
type Option func(*suite)

// NoAllocs says that after the first run of a program, a run allocates nothing on Go's heap.
func NoAllocs() Option { return func(s *suite) { s.noAllocs = true } }

// For says what programs are compiled for; else it is the zero target.
func For(target ir.Target) Option { return func(s *suite) { s.target = target } }

// Only runs one group of cases: fn, op, view, program, random, half, ranks, fault or memory.
func Only(group string) Option { return func(s *suite) { s.only = group } }

// suite is one run of the conformance suite.
type suite struct {
	dev      ir.Device
	target   ir.Target
	noAllocs bool
	only     string
}

// testCase is a named case of a table.
type testCase struct {
	name  string
	build func(b *draft)
}

// Run tests the device that open gives; it is closed at the end. Nothing else may use it meanwhile.
func Run(t *testing.T, open func(t *testing.T) ir.Device, opts ...Option) {
	s := &suite{dev: open(t)}
	for _, o := range opts {
		o(s)
	}
	atEnd(t, s.dev.Close)
	type group struct {
		name  string
		cases []testCase
	}
	groups := []group{
		{"fn", fnCases()},
		{"op", opCases()},
		{"view", viewCases()},
		{"program", programCases()},
		{"random", randomCases()},
	}
	if ir.TraitsOf(s.dev).ChannelsLast {
		groups = append(groups, group{"channels last", lastCases()})
	}
	// They are many of the programs above once more: short tests leave them out, unless they are for them.
	if !s.target.TF32 && (s.only == "half" || !testing.Short()) {
		groups = append(groups, group{"half", halfCases()})
	}
	for _, group := range groups {
		s.group(t, group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) { s.conforms(t, c.build) })
			}
		})
	}
	s.group(t, "ranks", s.ranks)
	s.group(t, "fault", s.faults)
	s.group(t, "memory", s.memories)
}

func (s *suite) group(t *testing.T, name string, f func(t *testing.T)) {
	if s.only == "" || s.only == name {
		t.Run(name, f)
	}
}

// machine is a compiled program on a device's memory.
type machine struct {
	dev  ir.Device
	prog *ir.Program
	mem  [ir.NumRegions]ir.DeviceMemory
	exe  ir.Executable
}

// start compiles a case and loads it onto memory of exactly the program's sizes, all of it NaN.
func (s *suite) start(t *testing.T, b *draft) *machine {
	t.Helper()
	prog, err := ir.Compile("conformance", b.size, s.targetOf(b), b.parts...)
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	m := &machine{dev: s.dev, prog: prog}
	for r := range ir.NumRegions {
		n := prog.Bytes(r)
		if n == 0 {
			continue
		}
		if m.mem[r], err = s.dev.Alloc(n); err != nil {
			t.Fatalf("alloc %d bytes for %s: %v", n, r, err)
		}
		atEnd(t, m.mem[r].Free)
		m.write(t, r, slices.Repeat([]uint32{poison}, int(n/4)))
	}
	if m.exe, err = s.dev.Load(prog, m.mem); err != nil {
		t.Fatalf("load: %v\n%s", err, prog)
	}
	atEnd(t, m.exe.Close)
	return m
}

// atEnd gives back what the test has taken, and reports an error of that.
func atEnd(t *testing.T, free func() error) {
	t.Cleanup(func() {
		if err := free(); err != nil {
			t.Errorf("giving back: %v", err)
		}
	})
}

// poison is a NaN that no arithmetic makes.
const poison = 0x7fc0dead

func (m *machine) write(t *testing.T, r ir.Region, words []uint32) {
	t.Helper()
	if len(words) == 0 {
		return
	}
	buf := make([]byte, 0, 4*len(words))
	for _, w := range words {
		buf = binary.NativeEndian.AppendUint32(buf, w)
	}
	if err := m.mem[r].Write(0, buf); err != nil {
		t.Fatalf("write %s: %v", r, err)
	}
}

func (m *machine) read(t *testing.T, r ir.Region) []uint32 {
	t.Helper()
	if m.mem[r] == nil {
		return nil
	}
	buf := make([]byte, m.prog.Bytes(r))
	if err := m.mem[r].Read(0, buf); err != nil {
		t.Fatalf("read %s: %v", r, err)
	}
	words := make([]uint32, len(buf)/4)
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(buf[4*i:])
	}
	return words
}

// image is the content of all regions but Work and Consts, as words.
type image [ir.Work][]uint32

func (m *machine) snapshot(t *testing.T) (im image) {
	t.Helper()
	for r := range im {
		im[r] = m.read(t, ir.Region(r))
	}
	return im
}

func (m *machine) restore(t *testing.T, im image) {
	t.Helper()
	for r, words := range im {
		m.write(t, ir.Region(r), words)
	}
}

// word is x as the device holds it.
func word(dtype ir.DType, x float64) uint32 {
	if dtype == ir.I32 {
		return uint32(int32(x))
	}
	return math.Float32bits(float32(x))
}

func number(dtype ir.DType, w uint32) float64 {
	if dtype == ir.I32 {
		return float64(int32(w))
	}
	return float64(math.Float32frombits(w))
}

// conforms builds a case and runs it.
func (s *suite) conforms(t *testing.T, build func(b *draft)) {
	b := newDraft(t)
	build(b)
	if b.large && testing.Short() {
		t.Skip("large")
	}
	for _, p := range b.parts {
		if p.Graph != nil && p.Graph.Err() != nil {
			t.Fatalf("the case is wrong: %v", p.Graph.Err())
		}
	}
	parts, err := b.meaning()
	if err != nil {
		t.Fatalf("the case is wrong: %v", err)
	}
	s.copyParams(b)
	m := s.start(t, b)
	rt := &ir.Runtime{Seed: b.rng.Uint64(), Step: uint64(b.rng.IntN(1000)), FirstSample: b.rng.IntN(100)}
	for round := range 2 {
		before := b.content(m.prog)
		m.restore(t, before)
		m.run(t, rt)
		after := m.snapshot(t)
		if errs := b.compare(parts, rt, before, after); len(errs) > 0 {
			for _, err := range errs {
				t.Errorf("input set %d: %v", round, err)
			}
			t.Logf("graph:\n%s\nprogram:\n%s", b.Graph, m.prog)
			return
		}
		m.restore(t, before)
		m.run(t, rt)
		if !sameImage(m.snapshot(t), after) {
			t.Errorf("two runs on the same content differ\n%s", m.prog)
		}
	}
	if s.noAllocs {
		if n := testing.AllocsPerRun(3, func() { m.run(t, rt) }); n > 0 {
			t.Errorf("a run allocates %v times\n%s", n, m.prog)
		}
	}
}

func (m *machine) run(t *testing.T, rt *ir.Runtime) {
	if err := m.exe.Run(context.Background(), rt); err != nil {
		t.Fatalf("run: %v\n%s", err, m.prog)
	}
}

func sameImage(a, b image) bool {
	for r := range a {
		if !slices.Equal(a[r], b[r]) {
			return false
		}
	}
	return true
}

// content draws what memory holds before a run: random numbers in filled slots, the poison elsewhere.
func (b *draft) content(p *ir.Program) (im image) {
	for r := range im {
		im[r] = slices.Repeat([]uint32{poison}, p.Size[r])
	}
	for _, s := range b.slots {
		for i := s.Offset; i < s.End(); i++ {
			im[s.Region][i] = word(s.DType, float64(b.fill[s](b.rng)))
		}
	}
	if b.params > 0 {
		b.copied(im[ir.Params])
	}
	return im
}

// env is an evaluation's start: the same content as the device's.
func (b *draft) env(rt *ir.Runtime, before image) *ref.Env {
	var size [ir.NumRegions]int
	for r, words := range before {
		size[r] = len(words)
	}
	e := ref.NewEnv(size)
	e.Runtime = *rt
	for r := range before {
		for i := range e.Memory[r] {
			e.Memory[r][i] = math.NaN()
		}
	}
	for _, s := range b.slots {
		for i := s.Offset; i < s.End(); i++ {
			e.Memory[s.Region][i] = number(s.DType, before[s.Region][i])
		}
	}
	return e
}

// perturb changes every value that a device rounds by up to 2^-23 of itself, inputs included: that stands for the roundings
// inside sums. What is moved changes too, since a loop may make the number again that was moved, to other bits. What is rounded to a half
// changes by up to 1/64 of that type's step, since a sum's last bits make some results round to the neighbour, and by 1/16 after a bias,
// which some of cuBLASLt's kernels add to a product that they have rounded already.
func (b *draft) perturb(rng *rand.Rand) func(*ir.Value, []float64) {
	return func(v *ir.Value, x []float64) {
		switch op := v.Op.(type) {
		case ir.Read:
			if b.exact[op.Slot] {
				return
			}
		case ir.Const:
			// Rounded once, the same for all elements, unless float32 holds it.
			if float64(float32(op.Value)) != op.Value {
				f := shake(rng, 0x1p-23)
				for i := range x {
					x[i] *= f
				}
			}
			return
		case ir.Data, ir.Iota, ir.Rand, ir.CheckIndex, ir.ArgMax, ir.Reshape, ir.Transpose, ir.Slice, ir.Broadcast:
			return
		}
		if v.DType == ir.I32 {
			return
		}
		far := 0x1p-23
		if f, step := rounding(b.half); b.half.Half() && v.Op == (ir.Map{Fn: f}) {
			if _, given := v.Args[0].Op.(ir.Read); given {
				return
			}
			far = step / 64
			if biased(v.Args[0]) {
				far = step / 16
			}
		}
		for i := range x {
			x[i] *= shake(rng, far)
		}
	}
}

func shake(rng *rand.Rand, far float64) float64 { return 1 + (2*rng.Float64()-1)*far }

// compare holds what the device made of before against what ref makes of parts.
func (b *draft) compare(parts []ir.Part, rt *ir.Runtime, before, after image) []error {
	want := b.env(rt, before)
	if err := ref.Eval(want, parts...); err != nil {
		return []error{fmt.Errorf("the case is wrong: %w", err)}
	}
	runs := 3
	switch {
	case b.bits:
		runs = 0
	case b.large:
		runs = 1
	}
	var shaken []*ref.Env
	for range runs {
		e := b.env(rt, before)
		e.Round = b.perturb(rand.New(rand.NewPCG(b.rng.Uint64(), 2)))
		if err := ref.Eval(e, parts...); err != nil {
			return []error{fmt.Errorf("the case is wrong: %w", err)}
		}
		shaken = append(shaken, e)
	}
	var errs []error
	untouched := after
	for r := range untouched {
		untouched[r] = slices.Clone(after[r])
	}
	for _, p := range b.parts {
		if p.Graph == nil {
			continue
		}
		for _, st := range p.Graph.Stores {
			s := st.Slot
			got := make([]float64, s.Shape.Size())
			for i := range got {
				got[i] = number(s.DType, after[s.Region][s.Offset+i])
			}
			copy(untouched[s.Region][s.Offset:s.End()], before[s.Region][s.Offset:s.End()])
			var others [][]float64
			for _, e := range shaken {
				others = append(others, e.At(s))
			}
			limit := limits{scale: 1, floor: max(b.floor, 1e-37)}
			if b.bits || s.DType == ir.I32 {
				limit = limits{}
			}
			if err := limit.hold(got, nearest(s.DType, want.At(s)), others); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", s.Name, s.Shape, err))
			}
		}
	}
	if b.params > 0 {
		if err := b.checkCopy(after[ir.Params]); err != nil {
			errs = append(errs, err)
		}
		copy(untouched[ir.Params][b.params:], before[ir.Params][b.params:])
	}
	for r := range untouched {
		for i, w := range untouched[r] {
			if w != before[r][i] {
				errs = append(errs, fmt.Errorf("%s+%d: written, though no slot of a store", ir.Region(r), i))
				break
			}
		}
	}
	return errs
}

// limits is how far results may be from ref's. The zero limits ask for equal numbers.
type limits struct{ scale, floor float64 }

// hold reports how got is farther from want than roundings explain. Where shaken are results of the same computation with
// every value changed by up to 2^-23 of itself, and dev[i] is the largest |shaken[i]-want[i]|, the rules are
//
//	|got[i]-want[i]| <= scale (128 (dev[i] + rms(dev)) + 2^-21 |want[i]|) + floor     for every element
//	rms(got-want)    <= scale (16 rms(dev) + 2^-21 rms(want)) + floor                of at least 16 elements
//
// A sum of n terms taken in order rounds about sqrt(n)/4 times as much as the change of its terms makes, and the worst of many
// elements is four to eight times the mean: the factors allow for n to 4000. NaN equals NaN only.
func (l limits) hold(got, want []float64, shaken [][]float64) error {
	dev := make([]float64, len(want))
	for _, s := range shaken {
		for i := range dev {
			if d := math.Abs(s[i] - want[i]); !math.IsNaN(d) && !math.IsInf(d, 0) {
				dev[i] = max(dev[i], d)
			}
		}
	}
	diff := make([]float64, len(want))
	finite := make([]float64, len(want))
	rmsDev := rms(dev)
	for i, w := range want {
		if got[i] == w || math.IsNaN(got[i]) && math.IsNaN(w) {
			continue
		}
		allowed := l.scale*(128*(dev[i]+rmsDev)+0x1p-21*math.Abs(w)) + l.floor
		d := math.Abs(got[i] - w)
		if !(d <= allowed) || math.IsInf(w, 0) { // NaN never passes
			return fmt.Errorf("element %d of %d: got %v, want %v, off by %.3g, allowed %.3g", i, len(want), got[i], w, d, allowed)
		}
		diff[i], finite[i] = d, w
	}
	allowed := l.scale*(16*rmsDev+0x1p-21*rms(finite)) + l.floor
	if d := rms(diff); d > allowed && len(want) >= 16 {
		return fmt.Errorf("off by %.3g in the mean, allowed %.3g", d, allowed)
	}
	return nil
}

// nearest is what the device would hold if it computed without error; past float32's range that is an infinity.
func nearest(dtype ir.DType, want []float64) []float64 {
	out := make([]float64, len(want))
	for i, w := range want {
		out[i] = number(dtype, word(dtype, w))
	}
	return out
}

// rms is the root of the mean square.
func rms(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum / float64(max(1, len(x))))
}
