package dp

import (
	"context"
	"errors"
	"slices"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// Batch is a batch that lies on the cards: what is trained on again and again need not be sent there again.
type Batch struct {
	t     *DataParallel
	plan  *stepPlan
	form  form                // of a share, in a job of several processes
	first int                 // number, in the whole batch, of this process's first sample
	mem   [][]ir.DeviceMemory // by rank of this process and part of its step; nil where the rank has no samples
}

// Upload puts a batch, as [DataParallel.Step] takes it, on the cards, in memory of its own. Free it when it is not needed any more, before
// the trainer is closed.
//
// In a job of several processes every process calls Upload, each with its share of the batch as for [DataParallel.StepShard].
func (t *DataParallel) Upload(x, y tensor.Tensor) (*Batch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	if t.procs != nil {
		return t.uploadTogether(x, y)
	}
	bx, plan, by, err := t.prepare(context.Background(), x, y)
	if err != nil {
		return nil, err
	}
	b := &Batch{t: t, plan: plan}
	if err := b.upload(bx, by); err != nil {
		return nil, errors.Join(err, t.reconnect(context.Background()))
	}
	return b, nil
}

// uploadTogether is Upload in a job of several processes.
func (t *DataParallel) uploadTogether(x, y tensor.Tensor) (*Batch, error) {
	ctx := context.Background()
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	bx, err := t.share(x)
	if err != nil {
		return nil, t.failed(err)
	}
	if err := t.together(ctx, header{call: uploadCall, x: bx.form}); err != nil {
		return nil, err
	}
	b, err := t.uploadShare(ctx, bx, y)
	if err != nil {
		return nil, t.failed(err)
	}
	return b, nil
}

func (t *DataParallel) uploadShare(ctx context.Context, x batch, y tensor.Tensor) (*Batch, error) {
	whole, err := t.wholeBatch(uploadCall)
	if err != nil {
		return nil, err
	}
	plan, err := t.stepPlan(ctx, whole, t.shares)
	if err != nil {
		return nil, err
	}
	bx, by, err := t.checked(plan, uploadCall, feed{x: x, y: y})
	if err != nil {
		return nil, err
	}
	b := &Batch{t: t, plan: plan, form: form{x.ints, slices.Clone(x.shape)}, first: t.shares[t.Rank()].Lo}
	return b, b.upload(bx, by)
}

// upload takes the batch's memory and fills it. On error it holds none.
func (b *Batch) upload(x, y batch) error {
	b.mem = make([][]ir.DeviceMemory, len(b.t.team.ranks))
	err := b.t.team.do(context.Background(), rankFunc(func(r *rank) error { return b.place(r, x, y) }))
	if err != nil {
		return errors.Join(err, b.free())
	}
	return nil
}

// place puts a rank's share of the batch on its device, laid out as the inputs of its programs.
func (b *Batch) place(r *rank, x, y batch) error {
	t := b.t
	own := r.index - t.Rank()
	parts := b.plan.ranks[own]
	b.mem[own] = make([]ir.DeviceMemory, len(parts))
	for i := range parts {
		p := &parts[i]
		if p.share.Len() == 0 {
			continue
		}
		m, err := alloc(r.dev, "batch", p.prog.Bytes(ir.Input))
		if err != nil {
			return err
		}
		b.mem[own][i] = m
		here := data.Range{Lo: p.share.Lo - b.first, Hi: p.share.Hi - b.first}
		if err := scatter(m.Write, p.prog.x.Offset, x, t.cfg.dim, here); err != nil {
			return err
		}
		if err := scatter(m.Write, p.prog.y.Offset, y, b.plan.dimY, here); err != nil {
			return err
		}
	}
	return nil
}

// Free gives the batch's memory back. The steps that it was trained on in are waited for.
func (b *Batch) Free() error {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	if b.mem == nil {
		return nil
	}
	_ = b.t.settleAll() // whoever wants to know asks the Loss
	return b.free()
}

func (b *Batch) free() error {
	var errs []error
	for _, parts := range b.mem {
		for _, m := range parts {
			if m != nil {
				errs = append(errs, m.Free())
			}
		}
	}
	b.mem = nil
	return errors.Join(errs...)
}

// StepBatch trains on a batch that lies on the cards. It returns as [DataParallel.StepAsync] does. In a job of several processes every
// process calls StepBatch with its share, or StepShard.
func (t *DataParallel) StepBatch(ctx context.Context, b *Batch) (*Loss, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.usable() != nil:
		return nil, t.usable()
	case b == nil:
		return nil, errors.New("dp: StepBatch: there is no batch: Upload gives one")
	case b.t != t:
		return nil, errors.New("dp: StepBatch: the batch was uploaded by another trainer")
	case b.mem == nil:
		return nil, errors.New("dp: StepBatch: the batch was freed")
	case t.procs == nil && ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return t.async(func(l *Loss) (float64, error) {
		if t.procs != nil {
			return t.stepPlaced(ctx, b, l)
		}
		plan, err := t.fitStep(b.plan)
		if err != nil {
			return 0, err
		}
		b.plan = plan
		loss, err := t.updateBy(ctx, stepJob{t: t, plan: b.plan, batch: b, late: l})
		return loss, t.recovered(ctx, err)
	})
}

// stepPlaced is StepBatch in a job of several processes.
func (t *DataParallel) stepPlaced(ctx context.Context, b *Batch, late *Loss) (float64, error) {
	if err := t.ready(ctx); err != nil {
		return 0, err
	}
	if err := t.together(ctx, header{call: shardCall, x: b.form}); err != nil {
		return 0, err
	}
	return t.stepTogether(ctx, shardCall, feed{placed: b, late: late})
}
