package exec

import (
	"math/rand/v2"
	"testing"
)

// WaysOfMatrices tests every way of small products and convolutions, as TestWays and TestConvWays do, on whatever card there is.
func WaysOfMatrices(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, uint64(rand.Uint32())))
	for _, c := range []productCase{
		{m: 20, n: 40, k: 200, bias: true, relu: true, even: true},
		{m: 33, n: 10, k: 50, alongN: true, mask: true},
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
	} {
		t.Run(c.String(), func(t *testing.T) { c.test(t, rng) })
	}
}

// UpdateInParts is TestUpdateInParts on whatever card there is.
func UpdateInParts(t *testing.T) { updateInParts(t) }
