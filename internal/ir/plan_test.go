package ir

import (
	"math/rand/v2"
	"testing"
)

// TestPlanPacks draws buffers: those alive at the same time never overlap, and the arena is nearly as small as can be.
func TestPlanPacks(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	var waste float64
	const rounds = 50
	for range rounds {
		var buffers []*buffer
		for range 1 + rng.IntN(60) {
			start := rng.IntN(50)
			buffers = append(buffers, &buffer{size: rng.IntN(5000), start: start, end: start + rng.IntN(12)})
		}
		total := plan(buffers)
		least, _ := crowding(buffers)
		if total < least {
			t.Fatalf("an arena of %d for %d alive at once", total, least)
		}
		if least > 0 {
			waste += float64(total-least) / float64(least) / rounds
		}
		for i, a := range buffers {
			if a.offset%alignment != 0 || a.offset+a.size > total {
				t.Fatalf("buffer %+v in an arena of %d", a, total)
			}
			for _, b := range buffers[:i] {
				if a.start <= b.end && b.start <= a.end && a.offset < b.offset+b.size && b.offset < a.offset+a.size {
					t.Fatalf("buffers %+v and %+v overlap", a, b)
				}
			}
		}
	}
	if waste > 0.1 {
		t.Errorf("arenas are %.0f %% larger than what is alive at once, on average", 100*waste)
	}
	if n := plan(nil); n != 0 {
		t.Errorf("an arena of %d for nothing", n)
	}
}

// TestPlanLetsTheCrowdedChooseFirst: were the largest to choose first, the two in the middle would have to lie above it.
func TestPlanLetsTheCrowdedChooseFirst(t *testing.T) {
	buffers := []*buffer{
		{size: 640, start: 0, end: 2}, {size: 640, start: 2, end: 4}, {size: 384, start: 3, end: 5}, {size: 384, start: 4, end: 5},
	}
	if got, want := plan(buffers), 1408; got != want {
		t.Errorf("an arena of %d, want %d: %+v", got, want, buffers)
	}
}
