package data

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/philox"
)

// shuffleStream is the random stream of permutations. Ops take theirs from 0 up,
// so with one seed for all, shuffling never uses the numbers of an op.
const shuffleStream = 1 << 63

// Epoch gives the batches of an epoch, numbered from 0 for the shuffling. An
// error is the last thing it gives, with a nil batch. When the context has ended,
// batches made already are not given any more.
func (l *Loader) Epoch(ctx context.Context, epoch int) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		p := &pass{loader: l, epoch: epoch}
		if l.shuffle {
			p.order = philox.Perm(l.seed+uint64(epoch), shuffleStream, l.n)
		}
		if l.prefetch == 0 {
			p.run(ctx, yield)
		} else {
			p.runAhead(ctx, yield)
		}
	}
}

// pass is one loop over an epoch.
type pass struct {
	loader *Loader
	epoch  int
	order  []int // sample numbers in this epoch's order; nil for the dataset's
}

// run makes every batch when it is asked for.
func (p *pass) run(ctx context.Context, yield func(*Batch, error) bool) {
	b := new(Batch)
	for step := range p.loader.Batches() {
		var err error
		if ctx.Err() == nil {
			err = p.fill(ctx, b, step)
		}
		if !p.give(ctx, yield, b, step, err) {
			return
		}
	}
}

// runAhead lets a goroutine make batches while the loop's body works. A fixed
// number of batches goes round: free (to be filled) -> ready -> the body -> free.
// Both channels can hold all of them, so no send ever blocks.
func (p *pass) runAhead(ctx context.Context, yield func(*Batch, error) bool) {
	type made struct {
		batch *Batch
		err   error
	}
	batches := p.loader.Batches()
	count := min(p.loader.prefetch+1, batches) // one is in the body's hands
	free := make(chan *Batch, count)
	ready := make(chan made, count)
	for range count {
		free <- new(Batch)
	}

	ahead, stop := context.WithCancel(ctx)
	go func() {
		defer close(ready)
		for step := range batches {
			select {
			case <-ahead.Done():
				return
			case b := <-free:
				err := p.fill(ahead, b, step)
				ready <- made{b, err}
				if err != nil {
					return
				}
			}
		}
	}()
	defer func() {
		stop()
		for range ready { // until it is closed: the goroutine is gone
		}
	}()

	for step := range batches {
		m := <-ready // closed, so empty, only when ctx has ended: give sees to it
		if !p.give(ctx, yield, m.batch, step, m.err) {
			return
		}
		free <- m.batch
	}
}

// give hands a batch or an error to the loop's body and says whether to go on.
// An ended context comes before both: what failed then most likely failed for it,
// and what was made is not wanted any more.
func (p *pass) give(ctx context.Context, yield func(*Batch, error) bool, b *Batch, step int, err error) bool {
	if ctx.Err() != nil {
		err = stopped(ctx)
	}
	if err != nil {
		yield(nil, fmt.Errorf("data: epoch %d, batch %d of %d: %w", p.epoch, step, p.loader.Batches(), err))
		return false
	}
	return yield(b, nil)
}

// stopped gives the error of an ended context, with its cause where it has one.
func stopped(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// fill makes this rank's part of a batch in b's memory.
func (p *pass) fill(ctx context.Context, b *Batch, step int) error {
	l := p.loader
	first := step * l.batchSize
	b.Step = step
	b.GlobalSize = min(l.batchSize, l.n-first)
	b.Share = Chunk(b.GlobalSize, l.world, l.rank)

	b.Indices = b.Indices[:0]
	for i := first + b.Share.Lo; i < first+b.Share.Hi; i++ {
		if p.order != nil {
			b.Indices = append(b.Indices, p.order[i])
		} else {
			b.Indices = append(b.Indices, i)
		}
	}
	b.X = resize(b.X, len(b.Indices), l.xSpec)
	b.Y = resize(b.Y, len(b.Indices), l.ySpec)
	if len(b.Indices) == 0 {
		return nil
	}
	err := l.ds.Batch(ctx, b.Indices, b.X, b.Y)
	if sample := (*SampleError)(nil); err != nil && !errors.As(err, &sample) {
		return fmt.Errorf("reading samples %s: %w", list(b.Indices), err)
	}
	return err
}

// resize gives a tensor of some rows, t itself where it has as many. In an epoch
// only the last batch may differ from the others.
func resize(t *tensor.Dense, rows int, s Spec) *tensor.Dense {
	switch {
	case rows == 0:
		return nil
	case t != nil && t.Shape()[0] == rows:
		return t
	}
	shape := append(tensor.Shape{rows}, s.Shape...)
	return tensor.New(tensor.Of(s.Dtype), tensor.WithShape(shape...))
}

// list writes sample numbers, at most a few of them.
func list(indices []int) string {
	const most = 8
	if len(indices) <= most {
		return fmt.Sprint(indices)
	}
	return fmt.Sprintf("%v and %d more", indices[:most], len(indices)-most)
}
