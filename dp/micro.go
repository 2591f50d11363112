package dp

import (
	"context"
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// thrift says how a step saves memory.
type thrift struct {
	parts  int  // in which the largest share is computed, at most
	frugal bool // programs are compiled to take little memory, whatever their size
}

// fitStep loads what a plan runs, or where that has no room what its frugal twin runs, and returns the plan that it is.
func (t *DataParallel) fitStep(p *stepPlan) (*stepPlan, error) {
	if t.allLoaded(p.programs) {
		return p, nil
	}
	get := func() error {
		err := t.loadAll(p.programs)
		if !isFull(err) || p.frugal {
			return err
		}
		twin, e := t.planStep(p.x, p.shares, thrift{p.parts, true})
		if e != nil {
			return e
		}
		if err = t.loadAll(twin.programs); err == nil {
			p = twin
		}
		return err
	}
	return p, t.fit("Step", p.x.shape, thrift{p.parts, true}, get, t.stepPrograms(p.x))
}

// fitParts is fitStep for a step that may be split: where it has no room, it is planned again with as few more parts as it takes. That can
// go on, since between planning and loading other processes take memory as well.
func (t *DataParallel) fitParts(p *stepPlan) (*stepPlan, error) {
	p, err := t.fitStep(p)
	for isFull(err) && p.parts < mostSamples(p.shares) {
		parts, e := t.fewestParts(p.x, p.shares, p.parts+1)
		if e != nil {
			return nil, e
		}
		if p, e = t.planStep(p.x, p.shares, thrift{parts, true}); e != nil {
			return nil, e
		}
		p, err = t.fitStep(p)
	}
	return p, err
}

// fitTogether is fitParts for one of several processes: all take as many parts as the one that needs most.
func (t *DataParallel) fitTogether(ctx context.Context, p *stepPlan) (*stepPlan, error) {
	parts := make([]int32, t.WorldSize())
	for {
		var err error
		if p, err = t.fitParts(p); err != nil {
			return nil, err
		}
		parts[t.Rank()] = int32(p.parts)
		if err := t.group().AllGather(ctx, ir.Words[float32](ir.Bytes(parts))); err != nil {
			return nil, err
		}
		most := int(slices.Max(parts))
		if int(slices.Min(parts)) == most {
			return p, nil
		}
		if p.parts < most {
			if p, err = t.planStep(p.x, p.shares, thrift{most, true}); err != nil {
				return nil, err
			}
		}
	}
}

// fewestParts is the smallest number of parts, from so many on, in which a step would fit on all cards of this process; where none does,
// one a sample. Without [AutoMicroBatch] it is the number it is given.
func (t *DataParallel) fewestParts(x form, shares []data.Range, from int) (int, error) {
	most := mostSamples(shares)
	if !t.cfg.auto || from >= most {
		return from, nil
	}
	defer t.trial()()
	fits := func(parts int) (bool, error) { return t.wouldFit(x, shares, thrift{parts, true}) }
	// Fewer parts take more memory: look further and further, then between the last two.
	lo, hi := from-1, from
	for {
		ok, err := fits(hi)
		if err != nil {
			return 0, err
		}
		if ok || hi == most {
			break
		}
		lo, hi = hi, min(2*hi, most)
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		ok, err := fits(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, nil
}

// wouldFit reports whether a step planned like that would likely fit on all cards of this process. Whether it does, loading shows.
func (t *DataParallel) wouldFit(x form, shares []data.Range, th thrift) (bool, error) {
	p, err := t.planStep(x, shares, th)
	if err != nil {
		return false, err
	}
	cards, err := t.rehearse(demand{programs: p.programs}, false)
	return (&Plan{Cards: cards}).Fits(), err
}

// mostSamples is the size of the largest share.
func mostSamples(shares []data.Range) (n int) {
	for _, s := range shares {
		n = max(n, s.Len())
	}
	return n
}

// announce says that a step was split, and once what that means for batch normalisation.
func (t *DataParallel) announce(p *stepPlan) {
	if p.parts <= t.cfg.micro || t.Rank() > 0 {
		return
	}
	t.cfg.logger.Info(fmt.Sprintf("a batch of %v does not fit at once: each step on one is computed in %d parts, with the same result", p.x.shape, p.parts))
	if t.compiler.Layout.BufferElements > 0 && !t.warnedNorm {
		t.warnedNorm = true
		t.cfg.logger.Warn("batch normalisation takes its statistics from each part of a batch that is split, so that results differ from those of the whole batch")
	}
}
