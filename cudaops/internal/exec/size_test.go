package exec

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// temporaries takes words of scratch for steps, each in as many pieces as it has, and gives the planner that did.
func temporaries(steps [][]int) *planner {
	b := &planner{plan: &plan{own: make([]span, len(steps))}}
	for i, words := range steps {
		b.step, b.fresh = i, true
		for _, n := range words {
			b.temporary(n)
		}
	}
	return b
}

// TestMostScratch: whatever steps take, up to what is most for each, stays within the bound, though they may share scratch differently then.
func TestMostScratch(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	for range 3000 {
		most, less := make([][]int, 1+rng.IntN(12)), [][]int{}
		for i := range most {
			for range rng.IntN(3) {
				most[i] = append(most[i], 1+rng.IntN(apart/wordBytes/2))
			}
			var fewer []int
			for _, n := range most[i] {
				fewer = append(fewer, 1+rng.IntN(n))
			}
			less = append(less, fewer)
		}
		bound := mostScratch(temporaries(most).own)
		if took := temporaries(less).scratch; took > bound {
			t.Fatalf("steps with %v words take %d bytes, at most %v words were to take %d", less, took, most, bound)
		}
	}
	if got := mostScratch(temporaries([][]int{{64}, {1, 1}, nil}).own); got != 3*boundary {
		t.Errorf("three pieces: %d bytes", got)
	}
}

// TestLargestWay: of ways that are not measured yet, the one that takes most counts, and those that are none do not.
func TestLargestWay(t *testing.T) {
	takes := func(words ...int) way {
		return way{name: "takes", plan: func(b *planner, _ *ir.Step) error {
			for _, n := range words {
				b.temporary(n)
			}
			return nil
		}}
	}
	no := way{name: "no", plan: func(b *planner, _ *ir.Step) error {
		b.temporary(1 << 20)
		return errNoWay
	}}
	var z sizing
	b := &planner{plan: &plan{own: make([]span, 2)}, used: 512, step: 1, fresh: true}
	if err := z.largest([]way{takes(), takes(64, 64), no, takes(64)}).plan(b, nil); err != nil {
		t.Fatal(err)
	}
	if own := b.own[1]; own.to-own.from != 2*boundary || !z.unsure {
		t.Errorf("the step has %+v, unsure is %t", own, z.unsure)
	}
	guess := sizing{guess: true}
	if w := guess.largest([]way{{name: "first"}, takes(64)}); w.name != "first" || !guess.unsure {
		t.Errorf("the guess is %q, unsure is %t", w.name, guess.unsure)
	}
	broken := errors.New("broken")
	bad := way{name: "bad", plan: func(*planner, *ir.Step) error { return broken }}
	if err := z.largest([]way{takes(), bad}).plan(b, nil); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
