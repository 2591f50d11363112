package exec

import (
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
	"github.com/tandem-train/tandem/internal/ir"
)

// Size says how many bytes of the card's memory [Load] would take for p besides its regions; see [Exec.Extra]. Nothing is taken. Where p has
// products or convolutions whose fastest way is not remembered, because Load has never measured them on such a card, it may come to most, and
// without room to measure to likely; else the two are the same. The libraries are used as Load would use them, so that what they hold by
// themselves is there afterwards, as long as [Keep] keeps them.
func Size(card *cuda.Card, p *ir.Program, linked bool) (likely, most int64, err error) {
	guess := &sizing{guess: true}
	if likely, err = sizeOf(card, p, linked, guess); err != nil || !guess.unsure {
		return likely, likely, err
	}
	most, err = sizeOf(card, p, linked, &sizing{})
	return likely, max(likely, most), err
}

// Keep keeps the card's libraries open until the function that it returns is called, and with them the memory that the driver takes for the first
// streams, the first kernel and the first graph of a process, which are many small ones' as well: so that what the process has beside its regions
// is there to be seen.
func Keep(card *cuda.Card) (giveBack func() error, err error) {
	e := &Exec{card: card, tools: borrow(card)}
	e.later(e.tools.giveBack)
	giveBack = func() error { return card.Do(e.release) }
	if err := card.Do(e.settle); err != nil {
		return nil, errors.Join(fmt.Errorf("exec: card %d: a first kernel: %w", card.Ordinal, err), giveBack())
	}
	return giveBack, nil
}

// settle runs a kernel that does nothing, in a graph, beside as many streams as a program's graphs have branches.
func (e *Exec) settle() error {
	image, err := nvrtc.Compile("extern \"C\" __global__ void nothing() {}\n", arch(e.card))
	if err != nil {
		return err
	}
	m, err := e.card.ModuleLoadData(image)
	if err != nil {
		return err
	}
	e.later(func() error { return e.card.ModuleUnload(m) })
	f, err := e.card.ModuleGetFunction(m, "nothing")
	if err != nil {
		return err
	}
	var s cuda.Stream
	for range maxBranches + 1 {
		if s, err = e.card.StreamCreate(); err != nil {
			return err
		}
		made := s
		e.later(func() error { return e.card.StreamDestroy(made) })
	}
	launch := func() error { return e.card.LaunchKernel(f, cuda.Dim3{X: 1}, cuda.Dim3{X: 1}, 0, s, cuda.NewArgs()) }
	if err := launch(); err != nil { // once outside of a capture, in which nothing may be loaded
		return err
	}
	made, err := e.card.Capture(s, launch)
	if err != nil {
		return err
	}
	e.later(func() error { return e.card.GraphExecDestroy(made) })
	return errors.Join(e.card.GraphLaunch(made, s), e.card.StreamSynchronize(s))
}

// sizeOf plans p for its size.
func sizeOf(card *cuda.Card, p *ir.Program, linked bool, z *sizing) (bytes int64, err error) {
	e := &Exec{card: card, shared: card.Stream, stream: card.Stream, tools: borrow(card), sizing: z}
	e.later(e.tools.giveBack)
	for r := range ir.NumRegions {
		e.base[r] = boundary // the addresses don't matter, but as far as they are multiples of something
	}
	err = card.Do(func() error {
		e.plan, err = newPlan(p, vendor{e, e.tools}, linked)
		return errors.Join(err, e.release())
	})
	if err != nil {
		return 0, fmt.Errorf("exec: card %d: size of %s: %w", card.Ordinal, p.Name, err)
	}
	scratch := e.plan.scratch
	if z.unsure && !z.guess {
		scratch = mostScratch(e.plan.own, e.plan.apart())
	}
	return roundUp(int64(scratch)) + int64(e.plan.controlBytes()), nil
}

// mostScratch bounds the scratch of steps that have so much each, wherever each begins, with so much apart; see [planner.temporary].
func mostScratch(own []span, apart int) int {
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
	guess  bool // what is taken where nothing is measured; else the most that anything takes
	unsure bool // something has to be measured
}

// atMost notes that a workspace has to be measured, and gives what it is without that, or at most.
func (z *sizing) atMost(guess, most func() int64) func() int64 {
	z.unsure = true
	if z.guess {
		return guess
	}
	return most
}

// largest notes that the way has to be measured, and is the first, or the one that takes most scratch.
func (z *sizing) largest(ways []way) way {
	z.unsure = true
	if z.guess {
		return ways[0]
	}
	return way{name: "the largest", plan: func(b *planner, s *ir.Step) error {
		most, used := span{}, b.used
		for i, w := range ways {
			b.used, b.fresh, b.own[b.step] = used, true, span{}
			if err := w.plan(b, s); errors.Is(err, errNoWay) {
				continue
			} else if err != nil {
				return err
			}
			if own := b.own[b.step]; own.to-own.from > most.to-most.from && (i == 0 || b.fits(own.to-own.from)) {
				most = own
			}
		}
		b.own[b.step] = most
		return nil
	}}
}
