package dp

import (
	"context"
	"errors"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// Batch is a batch that lies on the cards: what is trained on again and again need not be sent there again.
type Batch struct {
	t    *DataParallel
	plan *stepPlan
	mem  [][]ir.DeviceMemory // by rank and part of its step; nil where the rank has no samples
}

// Upload puts a batch, as [DataParallel.Step] takes it, on the cards, in memory of its own. Free it when it is not needed any more, before
// the trainer is closed. It is for the cards of one process.
func (t *DataParallel) Upload(x, y tensor.Tensor) (*Batch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.usable() != nil:
		return nil, t.usable()
	case t.procs != nil:
		return nil, errors.New("dp: Upload: this is one of several processes: each step's batch must be sent, by Step or StepShard")
	}
	bx, plan, by, err := t.prepare(context.Background(), x, y)
	if err != nil {
		return nil, err
	}
	b := &Batch{t: t, plan: plan, mem: make([][]ir.DeviceMemory, len(t.team.ranks))}
	err = t.team.do(context.Background(), rankFunc(func(r *rank) error { return b.place(r, bx, by) }))
	if err != nil {
		return nil, errors.Join(err, b.free(), t.reconnect(context.Background()))
	}
	return b, nil
}

// place puts a rank's share of the batch on its device, laid out as the inputs of its programs.
func (b *Batch) place(r *rank, x, y batch) error {
	t := b.t
	parts := b.plan.ranks[r.index]
	b.mem[r.index] = make([]ir.DeviceMemory, len(parts))
	for i := range parts {
		p := &parts[i]
		if p.share.Len() == 0 {
			continue
		}
		m, err := alloc(r.dev, "batch", p.prog.Bytes(ir.Input))
		if err != nil {
			return err
		}
		b.mem[r.index][i] = m
		if err := scatter(m.Write, p.prog.x.Offset, x, t.cfg.dim, p.share); err != nil {
			return err
		}
		if err := scatter(m.Write, p.prog.y.Offset, y, b.plan.dimY, p.share); err != nil {
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

// StepBatch trains on a batch that lies on the cards. It returns as [DataParallel.StepAsync] does.
func (t *DataParallel) StepBatch(ctx context.Context, b *Batch) (*Loss, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.usable() != nil:
		return nil, t.usable()
	case b.t != t:
		return nil, errors.New("dp: StepBatch: the batch was uploaded by another trainer")
	case b.mem == nil:
		return nil, errors.New("dp: StepBatch: the batch was freed")
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return t.async(func(l *Loss) (float64, error) {
		if err := t.fitStep(b.plan); err != nil {
			return 0, err
		}
		loss, err := t.updateBy(ctx, stepJob{t: t, plan: b.plan, batch: b, late: l})
		return loss, t.recovered(ctx, err)
	})
}
