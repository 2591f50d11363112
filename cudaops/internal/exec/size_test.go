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
		bound := mostScratch(temporaries(most).own, apart)
		if took := temporaries(less).scratch; took > bound {
			t.Fatalf("steps with %v words take %d bytes, at most %v words were to take %d", less, took, most, bound)
		}
	}
	if got := mostScratch(temporaries([][]int{{64}, {1, 1}, nil}).own, apart); got != 3*boundary {
		t.Errorf("three pieces: %d bytes", got)
	}
}

// TestRoom: in a program for which memory is tight, steps have as much scratch apart as one has room for, and ways that take more do not count,
// but for the first, which always is one.
func TestRoom(t *testing.T) {
	p := &ir.Program{Target: ir.Target{Frugal: true, Tight: true}, Size: [ir.NumRegions]int{ir.Work: 4 * boundary}}
	room := boundary * wordBytes
	b := &planner{plan: &plan{program: p, own: make([]span, 4)}}
	for i := range b.own {
		b.step, b.fresh = i, true
		b.temporary(room / wordBytes / 2)
	}
	if b.scratch != room || b.own[2].from != 0 {
		t.Errorf("four steps with half of the room each lie in %d bytes as %v, want %d", b.scratch, b.own, room)
	}
	takes := func(bytes int) way {
		return way{plan: func(b *planner, _ *ir.Step) error { b.temporary(bytes / wordBytes); return nil }}
	}
	for _, c := range []struct {
		ways []way
		want int
	}{{[]way{takes(boundary), takes(room), takes(2 * room)}, room}, {[]way{takes(3 * room), takes(2 * room)}, 3 * room}} {
		if err := new(sizing).largest(c.ways).plan(b, nil); err != nil {
			t.Fatal(err)
		}
		if own := b.own[b.step]; own.to-own.from != c.want {
			t.Errorf("%d bytes at most, want %d", own.to-own.from, c.want)
		}
	}
	p.Target.Tight = false
	if b.apart() != apart || !b.fits(1<<40) {
		t.Errorf("%d bytes apart where memory is not short", b.apart())
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
