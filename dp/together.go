package dp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// StoppedError is the error of a call that ends because the context of another rank has ended. The group is whole, and all ranks are at
// the same step. It wraps [context.Canceled].
type StoppedError struct {
	Rank int // whose context has ended
}

func (e *StoppedError) Error() string { return fmt.Sprintf("dp: rank %d was told to stop", e.Rank) }

// Unwrap returns context.Canceled.
func (e *StoppedError) Unwrap() error { return context.Canceled }

// ErrEnd is Step's error on other ranks than 0 when rank 0 has gone on to another call: there are no more batches.
var ErrEnd = errors.New("dp: rank 0 has no more batches")

// together comes to a call with the other ranks, takes part in what they do before it, and returns when all have come: with nil, or
// ErrEnd.
func (t *DataParallel) together(ctx context.Context, mine header) error {
	p := t.procs
	if len(mine.x.shape) > maxDims {
		return t.failed(&InputError{What: "input", Why: fmt.Sprintf("%s has more than the %d dimensions that it may have in a job of several processes", mine.x, maxDims)})
	}
	for {
		mine.stop = ctx.Err() != nil
		if err := t.exchange(p.linger.after(ctx), mine); err != nil {
			return t.failed(err)
		}
		d, err := decide(p.headers)
		switch {
		case err != nil:
			return t.failed(err)
		case d.stop >= 0 && mine.stop:
			return ctx.Err()
		case d.stop >= 0:
			return &StoppedError{Rank: d.stop}
		case d.end && mine.call == stepCall:
			return ErrEnd
		case d.end:
			continue
		case d.call == mine.call:
			return nil
		}
		if _, err := t.stepTogether(ctx, d.call, feed{}); err != nil {
			return err
		}
	}
}

// exchange gives every rank all headers.
func (t *DataParallel) exchange(ctx context.Context, mine header) error {
	p := t.procs
	at := headerWords * p.place.Rank
	mine.put(p.words[at : at+headerWords])
	if err := t.group().AllGather(ctx, ir.Words[float32](ir.Bytes(p.words))); err != nil {
		return err
	}
	for r := range p.headers {
		p.headers[r].get(p.words[headerWords*r:][:headerWords])
	}
	return nil
}

// group is the end of this process's only rank.
func (t *DataParallel) group() comm.Comm { return t.team.ranks[0].group }

// inputOfPrimary passes rank 0's input through the door; the other ranks' is not used.
func (t *DataParallel) inputOfPrimary(x tensor.Tensor) (batch, error) {
	if t.Rank() > 0 {
		return batch{}, nil
	}
	return t.input(x)
}

// scatterBatch cuts rank 0's batch b, of which the others know the form, along dim into t.shares, and returns this rank's. d keeps what
// it needs from call to call.
func (t *DataParallel) scatterBatch(ctx context.Context, d *door, b batch, f form, dim int) (batch, error) {
	p := t.procs
	outer, inner := 1, 1
	for _, n := range f.shape[:dim] {
		outer *= n
	}
	for _, n := range f.shape[dim+1:] {
		inner *= n
	}
	for r, s := range t.shares {
		p.counts[r] = outer * s.Len() * inner
	}
	me := p.place.Rank
	var src, dst []float32
	if me > 0 {
		d.received = resize(d.received, p.counts[me])
		dst = d.received
	} else {
		src = ir.Words[float32](b.bytes)
		if outer > 1 {
			src = d.pack(src, outer, f.shape[dim], inner, t.shares)
		}
		dst = src[:p.counts[0]]
	}
	if err := t.group().Scatter(ctx, dst, src, p.counts, 0); err != nil {
		return batch{}, err
	}
	d.shape = append(d.shape[:0], f.shape...)
	d.shape[dim] = t.shares[me].Len()
	return batch{form{f.ints, d.shape}, ir.Bytes(dst)}, nil
}

// pack puts the shares of an array [outer, n, inner] one after the other.
func (d *door) pack(src []float32, outer, n, inner int, shares []data.Range) []float32 {
	d.packed = resize(d.packed, len(src))
	at := 0
	for _, s := range shares {
		for o := range outer {
			at += copy(d.packed[at:], src[(o*n+s.Lo)*inner:(o*n+s.Hi)*inner])
		}
	}
	return d.packed
}

// StepShard trains on one batch of which each process has a share, x and y, as a sharded loader gives it ([data.Shard]), and returns the
// loss of the whole batch. The shares of ranks 0, 1, ... follow each other in the batch; they may differ in size, and a rank that has no
// sample passes nil. A process that trains by itself has the whole batch: StepShard is [DataParallel.Step] then.
//
// Ranks that have no more batches go on to Forward, LoadStateDict or [DataParallel.Join]. Until all have, they take part in the others'
// steps.
func (t *DataParallel) StepShard(ctx context.Context, x, y tensor.Tensor) (float64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return 0, err
	}
	t.meter.began = time.Now()
	return t.stepShard(ctx, x, y, nil)
}

// stepShard is StepShard with the trainer locked; late is as for step.
func (t *DataParallel) stepShard(ctx context.Context, x, y tensor.Tensor, late *Loss) (float64, error) {
	if t.procs == nil {
		return t.stepAlone(ctx, x, y, late)
	}
	if err := t.ready(ctx); err != nil {
		return 0, err
	}
	bx, err := t.share(x)
	if err != nil {
		return 0, t.failed(err)
	}
	if err := t.together(ctx, header{call: shardCall, x: bx.form}); err != nil {
		return 0, err
	}
	return t.stepTogether(ctx, shardCall, feed{x: bx, y: y, late: late})
}

// share passes this rank's share of a batch's input through the door; there may be none.
func (t *DataParallel) share(x tensor.Tensor) (batch, error) {
	if missing(x) {
		return batch{}, nil
	}
	return t.input(x)
}

// Join waits until all processes of the job have called it, and takes part in the steps that others do before that, without samples: call
// it when a process has no more batches and others may have. In a process that trains by itself it does nothing.
func (t *DataParallel) Join(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	if t.procs == nil {
		return ctx.Err()
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	return t.together(ctx, header{call: joinCall})
}

// feed is what a rank brings to a step: a batch with its target, or one that lies on its card. late is as for step.
type feed struct {
	x      batch
	y      tensor.Tensor
	placed *Batch
	late   *Loss
}

// stepTogether does the step that all ranks have agreed on: with rank 0's batch (stepCall), or with a share of each. A rank that serves
// others has none.
func (t *DataParallel) stepTogether(ctx context.Context, call kind, in feed) (float64, error) {
	p := t.procs
	loss, err := t.runTogether(p.linger.after(ctx), call, in)
	if err != nil {
		return 0, t.failed(err)
	}
	if p.failed { // and that was survived
		p.failed = false
		return loss, p.place.Withdraw()
	}
	return loss, nil
}

func (t *DataParallel) runTogether(ctx context.Context, call kind, in feed) (float64, error) {
	whole, err := t.wholeBatch(call)
	if err != nil {
		return 0, err
	}
	plan, err := t.stepPlan(ctx, whole, t.shares)
	if err != nil {
		return 0, err
	}
	if in.placed != nil && in.placed.plan.parts != plan.parts {
		return 0, fmt.Errorf("dp: StepBatch: the batch was uploaded for a step in %d parts, and this one takes %d: upload it again", in.placed.plan.parts, plan.parts)
	}
	bx, by, err := t.checked(plan, call, in)
	if err != nil {
		return 0, err
	}
	if call == stepCall {
		if bx, err = t.scatterBatch(ctx, &t.door.x, bx, whole, t.cfg.dim); err != nil {
			return 0, err
		}
		if by, err = t.scatterBatch(ctx, &t.door.y, by, form{plan.target.DType == ir.I32, plan.want}, plan.dimY); err != nil {
			return 0, err
		}
	}
	return t.updateBy(ctx, stepJob{t: t, plan: plan, x: bx, y: by, batch: in.placed, first: t.shares[t.Rank()].Lo, late: in.late})
}

// checked is what a rank feeds, with its target through the door; nothing on a rank that has no batch.
func (t *DataParallel) checked(plan *stepPlan, call kind, in feed) (x, y batch, err error) {
	if in.x.bytes == nil {
		return in.x, y, nil
	}
	want := plan.want
	if call != stepCall {
		want = plan.mine
	}
	if y, err = t.target(in.y, plan.target.DType, want, in.x.form); err == nil {
		err = plan.verify(in.x, y)
	}
	return in.x, y, err
}

// wholeBatch finds the form of the whole batch and the ranks' shares of it.
func (t *DataParallel) wholeBatch(call kind) (form, error) {
	h, dim := t.procs.headers, t.cfg.dim
	if call == stepCall {
		t.chunks(h[0].x.shape[dim])
		return h[0].x, nil
	}
	first, at := -1, 0
	for r := range h {
		n := 0
		if s := h[r].x.shape; h[r].call == call && len(s) > 0 {
			n = s[dim]
			if first < 0 {
				first = r
			} else if a := &h[first].x; a.ints != h[r].x.ints || !sameBut(a.shape, s, dim) {
				return form{}, &InputError{What: "input", Why: fmt.Sprintf("it is %v on rank %d and %v on rank %d: shares of one batch are alike but for dimension %d", a, first, h[r].x, r, dim)}
			}
		}
		t.shares[r] = data.Range{Lo: at, Hi: at + n}
		at += n
	}
	if first < 0 {
		return form{}, &InputError{What: "input", Why: "no rank has a sample: end the loop, or call Join on the ranks that have none"}
	}
	// A header's memory is its rank's until the next exchange.
	h[first].x.shape[dim] = at
	return h[first].x, nil
}

// sameBut reports whether shapes are the same but for one dimension.
func sameBut(a, b []int, dim int) bool {
	return len(a) == len(b) && slices.Equal(a[:dim], b[:dim]) && slices.Equal(a[dim+1:], b[dim+1:])
}

// replicate gives every rank the values that rank 0 has.
func (t *DataParallel) replicate(ctx context.Context) error {
	return t.team.do(ctx, rankFunc(func(r *rank) error {
		for _, region := range []ir.Region{ir.Params, ir.Buffers} {
			m := r.mem[region]
			if m == nil {
				continue
			}
			values := make([]float32, min(m.Len(), piece)/4)
			if err := inPieces(m, func(off, n int64) error { return r.broadcast(ctx, m, off, values[:n/4]) }); err != nil {
				return err
			}
		}
		return nil
	}))
}

// broadcast gives every rank what rank 0 has at an offset of a memory, by way of some values.
func (r *rank) broadcast(ctx context.Context, m ir.DeviceMemory, off int64, values []float32) error {
	if r.index == 0 {
		if err := m.Read(off, ir.Bytes(values)); err != nil {
			return err
		}
	}
	err := r.group.Broadcast(ctx, values, 0)
	if err == nil && r.index > 0 {
		err = m.Write(off, ir.Bytes(values))
	}
	return err
}
