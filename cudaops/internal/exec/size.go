package exec

import (
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// Size says how many bytes of the card's memory [Load] would take for p besides its regions; see [Exec.Extra]. Nothing is taken. Where p has
// products or convolutions whose fastest way is not remembered, because Load has never measured them on such a card, it is the most that it may be, and exact
// is false. The libraries are used as Load would use them, so that what they hold by themselves is there afterwards, as long as [Keep] keeps them.
func Size(card *cuda.Card, p *ir.Program, linked bool) (bytes int64, exact bool, err error) {
	return sizeOf(card, p, linked, func(e *Exec) libraries { return vendor{e, e.tools} })
}

// Keep keeps the card's libraries open until the function that it returns is called.
func Keep(card *cuda.Card) (giveBack func() error) {
	tools := borrow(card)
	return func() error { return card.Do(tools.giveBack) }
}

// sizeOf is Size with the libraries that libs gives.
func sizeOf(card *cuda.Card, p *ir.Program, linked bool, libs func(*Exec) libraries) (bytes int64, exact bool, err error) {
	e := &Exec{card: card, shared: card.Stream, stream: card.Stream, tools: borrow(card), sizing: new(sizing)}
	e.later(e.tools.giveBack)
	for r := range ir.NumRegions {
		e.base[r] = boundary // the addresses don't matter, but as far as they are multiples of something
	}
	err = card.Do(func() error {
		e.plan, err = newPlan(p, libs(e), linked)
		return errors.Join(err, e.release())
	})
	if err != nil {
		return 0, false, fmt.Errorf("exec: card %d: size of %s: %w", card.Ordinal, p.Name, err)
	}
	scratch := e.plan.scratch
	if e.sizing.unsure {
		scratch = mostScratch(e.plan.own)
	}
	return roundUp(int64(scratch)) + int64(e.plan.controlBytes()), !e.sizing.unsure, nil
}

// mostScratch bounds the scratch of steps that have so much each, wherever each begins; see [planner.temporary].
func mostScratch(own []span) int {
	sum, largest := 0, 0
	for _, s := range own {
		sum += s.to - s.from
		largest = max(largest, s.to-s.from)
	}
	return min(sum, apart+largest)
}

// roundUp gives the next boundary.
func roundUp(bytes int64) int64 { return (bytes + boundary - 1) / boundary * boundary }

// sizing is a plan that is made for its size alone.
type sizing struct {
	unsure bool // something has to be measured
}

// atMost notes that a workspace has to be measured, and gives what bounds it.
func (z *sizing) atMost(most func() int64) func() int64 {
	z.unsure = true
	return most
}

// largest notes that the way has to be measured, and is the one that takes most scratch.
func (z *sizing) largest(ways []way) way {
	z.unsure = true
	return way{"the largest", func(b *planner, s *ir.Step) error {
		most, used := span{}, b.used
		for _, w := range ways {
			b.used, b.fresh, b.own[b.step] = used, true, span{}
			if err := w.plan(b, s); errors.Is(err, errNoWay) {
				continue
			} else if err != nil {
				return err
			}
			if own := b.own[b.step]; own.to-own.from > most.to-most.from {
				most = own
			}
		}
		b.own[b.step] = most
		return nil
	}}
}
