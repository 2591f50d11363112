package backendtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// domain draws a number for an input.
type domain func(rng *rand.Rand) float32

// The domains that most cases draw from.
var (
	normal   domain = func(rng *rand.Rand) float32 { return float32(rng.NormFloat64()) }
	positive domain = func(rng *rand.Rand) float32 { return 0.1 + 4*rng.Float32() }
	// steps has few values, so that ties and equal elements occur.
	steps domain = func(rng *rand.Rand) float32 { return float32(rng.IntN(9)-4) / 2 }
)

// below draws whole numbers from 0 to n-1.
func below(n int) domain { return func(rng *rand.Rand) float32 { return float32(rng.IntN(n)) } }

// draft is where a case builds its program: graphs, slots, and what to fill them with.
type draft struct {
	*ir.Graph // the part being built
	rng       *rand.Rand

	parts  []ir.Part
	size   [ir.NumRegions]int
	slots  []*ir.Slot // those with content before a run
	fill   map[*ir.Slot]domain
	exact  map[*ir.Slot]bool // content on which functions with jumps work: never perturbed
	bits   bool              // results are to be equal, not near
	large  bool              // one perturbation is enough: every result has many elements
	half   ir.DType          // that products work on; F32 is none
	params int               // where their copy in halves begins, in words; 0 is nowhere
	floor  float64           // what differs by less is equal, where results may cancel to nothing
}

// newDraft returns a draft with fresh random numbers whose seed is in t's log.
func newDraft(t *testing.T) *draft {
	seed := rand.Uint64()
	if s := os.Getenv("TANDEM_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("TANDEM_SEED: %v", err)
		}
	}
	t.Logf("TANDEM_SEED=%d", seed)
	b := &draft{rng: rand.New(rand.NewPCG(seed, 1)), fill: map[*ir.Slot]domain{}, exact: map[*ir.Slot]bool{}}
	b.next()
	return b
}

// next starts another graph, which runs after those before.
func (b *draft) next() {
	b.Graph = &ir.Graph{}
	b.parts = append(b.parts, ir.Part{Graph: b.Graph})
}

// slot takes a place in region r, at times with a gap before it: offsets need not be round.
func (b *draft) slot(r ir.Region, dtype ir.DType, shape ...int) *ir.Slot {
	s := &ir.Slot{Region: r, Name: fmt.Sprintf("%s%d", r, b.size[r]), Offset: b.size[r], Shape: slices.Clone(shape), DType: dtype}
	if b.rng.IntN(3) == 0 {
		s.Offset += b.rng.IntN(5)
	}
	b.size[r] = s.End()
	return s
}

// filled is slot with content drawn from d before each run.
func (b *draft) filled(r ir.Region, d domain, dtype ir.DType, shape ...int) *ir.Slot {
	s := b.slot(r, dtype, shape...)
	b.slots = append(b.slots, s)
	b.fill[s] = d
	return s
}

// in is an input of that shape.
func (b *draft) in(d domain, shape ...int) *ir.Value {
	return b.rounded(b.Read(b.filled(ir.Input, d, ir.F32, shape...)))
}

// inExact is an input fit for functions with jumps.
func (b *draft) inExact(d domain, shape ...int) *ir.Value {
	s := b.filled(ir.Input, d, ir.F32, shape...)
	b.exact[s] = true
	return b.rounded(b.Read(s))
}

// ints is an i32 input of whole numbers below bound.
func (b *draft) ints(bound int, shape ...int) *ir.Value {
	return b.Read(b.filled(ir.Input, below(bound), ir.I32, shape...))
}

// out stores v as an output.
func (b *draft) out(v *ir.Value) { b.Store(b.slot(ir.Output, v.DType, v.Shape...), v) }

// between draws a whole number from lo to hi.
func (b *draft) between(lo, hi int) int { return lo + b.rng.IntN(hi-lo+1) }

// dims draws a shape of that rank with at most about size elements, in which extent 1 is common.
func (b *draft) dims(rank, size int) []int {
	shape := make([]int, rank)
	for i := range shape {
		shape[i] = 1
	}
	n := 1
	for _, i := range b.rng.Perm(rank) {
		if b.rng.IntN(4) > 0 {
			shape[i] = b.between(1, min(max(1, size/n), 40))
			n *= shape[i]
		}
	}
	return shape
}

// sliced takes a random slice of v, of at least one element.
func (b *draft) sliced(v *ir.Value) *ir.Value {
	n := len(v.Shape)
	op := ir.Slice{Start: make([]int, n), Stop: make([]int, n), Step: make([]int, n)}
	for i, d := range v.Shape {
		op.Start[i] = b.rng.IntN(d)
		op.Stop[i] = b.between(op.Start[i]+1, d)
		op.Step[i] = b.between(1, 3)
	}
	return b.Add(op, nil, v)
}

// narrowed is shape with some extents 1, and at times without its first dimensions: it broadcasts to shape.
func (b *draft) narrowed(shape []int) []int {
	out := slices.Clone(shape)
	for i := range out {
		if b.rng.IntN(2) == 0 {
			out[i] = 1
		}
	}
	return out[b.rng.IntN(len(out)+1):]
}
