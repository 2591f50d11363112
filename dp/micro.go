package dp

import (
	"context"
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// fitStep loads what a plan runs.
func (t *DataParallel) fitStep(p *stepPlan) error {
	if t.allLoaded(p.programs) {
		return nil
	}
	return t.fit("Step", p.x.shape, p.parts, func() error { return t.loadAll(p.programs) }, t.stepPrograms(p.x, p.parts))
}

// fitParts is fitStep for a step that may be split: where it has no room, it is planned again with as few more parts as it takes. That can
// go on, since between planning and loading other processes take memory as well.
func (t *DataParallel) fitParts(p *stepPlan) (*stepPlan, error) {
	err := t.fitStep(p)
	for isFull(err) && p.parts < mostSamples(p.shares) {
		parts, e := t.fewestParts(p.x, p.shares, p.parts+1)
		if e != nil {
			return nil, e
		}
		if p, e = t.planStep(p.x, p.shares, parts); e != nil {
			return nil, e
		}
		err = t.fitStep(p)
	}
	return p, err
}

// fitTogether is fitParts for one of several processes: all take as many parts as the one that needs most.
func (t *DataParallel) fitTogether(ctx context.Context, p *stepPlan) (*stepPlan, error) {
	world := t.WorldSize()
	parts := make([]int32, world)
	for {
		q, err := t.fitParts(p)
		if err != nil {
			return nil, err
		}
		parts[t.Rank()] = int32(q.parts)
		if err := t.group().AllGather(ctx, ir.Words[float32](ir.Bytes(parts))); err != nil {
			return nil, err
		}
		most := int(slices.Max(parts))
		if int(slices.Min(parts)) == most {
			return q, nil
		}
		if q.parts < most {
			if q, err = t.planStep(p.x, p.shares, most); err != nil {
				return nil, err
			}
		}
		p = q
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
	fits := func(parts int) (bool, error) {
		p, err := t.planStep(x, shares, parts)
		if err != nil {
			return false, err
		}
		cards, err := t.rehearse(demand{programs: p.programs})
		return (&Plan{Cards: cards}).Fits(), err
	}
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
