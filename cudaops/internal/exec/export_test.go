package exec

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/cardtest"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// WaysOfMatrices tests every way of small products and convolutions, as TestWays and TestConvWays do, on whatever card there is.
func WaysOfMatrices(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, uint64(rand.Uint32())))
	for _, c := range []productCase{
		{m: 20, n: 40, k: 200, bias: true, relu: true, even: true},
		{m: 33, n: 10, k: 50, alongN: true, mask: true},
		{m: 40, n: 36, k: 12, alongN: true, mask: true, even: true},
		{m: 40, n: 36, k: 264, alongM: true, alongN: true, sums: true, even: true},
		{m: 131, n: 37, k: 267, alongM: true, alongN: true, sums: true},
		{m: 130, n: 36, k: 520, alongM: true, alongN: true, bias: true, relu: true, even: true},
	} {
		t.Run(c.String(), func(t *testing.T) { c.test(t, rng) })
	}
	three, none, one := [2]int{3, 3}, [2]int{}, [2]int{1, 1}
	for _, c := range []convCase{
		{forward, 1, 1, 9, 12, 12, three, none, one}, {byW, 2, 1, 9, 12, 12, three, none, one},
		{forward, 2, 16, 5, 8, 32, three, none, one}, {byX, 1, 32, 5, 8, 16, three, one, one},
		{byW, 1, 32, 5, 10, 64, three, one, one}, {byW, 2, 32, 4, 9, 64, one, none, one},
		{byW, 1, 32, 4, 24, 64, three, one, one}, {byW, 2, 32, 3, 24, 32, three, one, one}, // segments of 24, whose rows are loaded one by one
	} {
		t.Run(c.String(), func(t *testing.T) { c.test(t, rng) })
	}
}

// MaskedGradient is TestMaskedGradient on whatever card there is.
func MaskedGradient(t *testing.T) { maskedGradient(t) }

// StoredSums is TestStoredSums on whatever card there is.
func StoredSums(t *testing.T) { storedSums(t) }

// PreludesTogether is TestPreludesTogether on whatever card there is.
func PreludesTogether(t *testing.T) { preludesTogether(t) }

// UpdateInParts is TestUpdateInParts on whatever card there is.
func UpdateInParts(t *testing.T) { updateInParts(t) }

// Noise fills bytes of a card's memory with noise.
func Noise(card *cuda.Card, at cuda.Ptr, bytes int) error {
	return (&Exec{card: card, shared: card.Stream}).noise(at, bytes)
}

// Measured fills three regions with 1 and gives what a product, heavy or not, is measured on whose operands lie in a and y and whose result in out, 16 words
// each; and what the regions hold when its result has been written.
func Measured(b *cardtest.Bench, a, y, out ir.Region, heavy bool) (operands [3][]float32, stays map[ir.Region][]float32, err error) {
	ones := slices.Repeat([]float32{1}, 16)
	e := &Exec{card: b.Card, shared: b.Card.Stream}
	at, sizes := make([]place, 3), []int{64, 64, 64}
	for i, r := range []ir.Region{a, y, out} {
		e.base[r] = b.New(ones, 0)
		at[i].base = r
	}
	err = vendor{e: e}.measure(at, sizes, 2, 0, heavy, func(at []cuda.Ptr, _ cuda.Ptr) error {
		for i := range operands {
			operands[i] = b.Get(at[i], 16)
		}
		b.Put(at[2], cardtest.Poison(16))
		return nil
	})
	stays = map[ir.Region][]float32{}
	for _, p := range at {
		stays[p.base] = b.Get(e.base[p.base], 16)
	}
	return operands, stays, err
}
