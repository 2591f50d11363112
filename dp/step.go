package dp

import (
	"context"
	"slices"
	"time"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// Step trains on one batch and returns its loss, as it was before the update.
//
// x has the samples along dimension 0 (see [Dim]); it may be a view, and of any numeric type: it is converted to float32 unless
// the model takes indices. y is the target that the loss wants: integer class labels [N], or numbers of the output's shape.
// Each rank gets ceil(N/ranks) samples until none are left.
//
// When ctx ends, the step ends before its update with ctx's error, or is completed.
//
// In a job of several processes every process calls Step. The batch is that of rank 0; the others pass nil, and get [ErrEnd] when rank 0
// has gone on to another call. All get the loss. When the context of one rank has ended, all end at the same step: with the context's
// error on that rank, a [StoppedError] on the others.
func (t *DataParallel) Step(ctx context.Context, x, y tensor.Tensor) (float64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return 0, err
	}
	t.meter.began = time.Now()
	return t.step(ctx, x, y, nil)
}

// step is Step with the trainer locked. With late it need not be done when this returns; late says then how to wait.
func (t *DataParallel) step(ctx context.Context, x, y tensor.Tensor, late *Loss) (float64, error) {
	if t.procs == nil {
		return t.stepAlone(ctx, x, y, late)
	}
	if err := t.ready(ctx); err != nil {
		return 0, err
	}
	bx, err := t.inputOfPrimary(x)
	if err != nil {
		return 0, t.failed(err)
	}
	if err := t.together(ctx, header{call: stepCall, x: bx.form}); err != nil {
		return 0, err
	}
	return t.stepTogether(ctx, stepCall, feed{x: bx, y: y, late: late})
}

// stepAlone is step in a process that trains by itself.
func (t *DataParallel) stepAlone(ctx context.Context, x, y tensor.Tensor, late *Loss) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	bx, plan, by, err := t.prepare(ctx, x, y)
	if err != nil {
		return 0, err
	}
	loss, err := t.update(ctx, plan, bx, by, 0, late)
	return loss, t.recovered(ctx, err)
}

// prepare passes a batch through the door, plans its step and loads what that takes.
func (t *DataParallel) prepare(ctx context.Context, x, y tensor.Tensor) (bx batch, plan *stepPlan, by batch, err error) {
	if bx, err = t.input(x); err != nil {
		return bx, nil, by, err
	}
	if plan, err = t.stepPlan(ctx, bx.form, t.chunks(bx.shape[t.cfg.dim])); err != nil {
		return bx, nil, by, err
	}
	if by, err = t.target(y, plan.target.DType, plan.want, bx.form); err != nil {
		return bx, nil, by, err
	}
	return bx, plan, by, plan.verify(bx, by)
}

// recovered connects the ranks of this process anew after an error, also where the context has ended, and returns the context's then.
func (t *DataParallel) recovered(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if e := t.reconnect(context.WithoutCancel(ctx)); e != nil {
		return e
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// chunks are the ranks' shares of n samples that are scattered. They are valid until the next call.
func (t *DataParallel) chunks(n int) []data.Range {
	for r := range t.shares {
		t.shares[r] = data.Chunk(n, len(t.shares), r)
	}
	return t.shares
}

// update runs a plan on the ranks of this process, with samples of which the first has that number in the batch.
func (t *DataParallel) update(ctx context.Context, plan *stepPlan, x, y batch, first int, late *Loss) (float64, error) {
	return t.updateBy(ctx, stepJob{t: t, plan: plan, x: x, y: y, first: first, late: late})
}

// updateBy does a step.
func (t *DataParallel) updateBy(ctx context.Context, j stepJob) (float64, error) {
	lr := t.compiler.Optimizer.LR()
	if t.cfg.schedule != nil {
		lr = t.cfg.schedule.LR(lr, t.updates)
	}
	for i, h := range t.compiler.Optimizer.HyperAt(t.updates+1, lr) {
		t.hyper[i] = float32(h)
	}
	t.job = j
	clear(t.team.loss[:])
	if err := t.team.do(ctx, &t.job); err != nil {
		return 0, err
	}
	t.updates++
	samples := t.samplesHere(j.plan.shares)
	if j.late != nil && j.late.steps[0].exec != nil {
		j.late.began, j.late.samples = t.meter.began, samples
		return 0, nil
	}
	loss := t.team.lossRead()
	t.meter.done(t.meter.began, samples, loss)
	return loss, nil
}

// target passes y, the target for samples x, through the door as the loss wants it.
func (t *DataParallel) target(y tensor.Tensor, dtype ir.DType, want ir.Shape, x form) (batch, error) {
	if missing(y) {
		return batch{}, inputError("target", nil, "there is none: the loss takes %s%v", dtype, want)
	}
	if !want.Equal(ir.Shape(y.Shape())) {
		return batch{}, inputError("target", y, "the loss takes %s%v for an input of shape %v", dtype, want, x.shape)
	}
	if dtype == ir.I32 {
		return t.door.y.intsOf("target", y)
	}
	return t.door.y.floatsOf("target", y)
}

// stepJob is a step on every rank.
type stepJob struct {
	t     *DataParallel
	plan  *stepPlan
	x, y  batch
	first int    // number, in the whole batch, of the first sample of x and y
	batch *Batch // in place of x and y, or nil
	late  *Loss  // of a step that is not waited for, or nil
}

func (j *stepJob) run(ctx context.Context, r *rank) error {
	t := j.t
	parts := j.plan.ranks[r.index-t.Rank()]
	for i := range parts {
		part := &parts[i]
		if err := r.followOthers(ctx, part); err != nil {
			return err
		}
		if part.prog == nil {
			continue
		}
		l := r.execs[part.prog.Program]
		if part.share.Len() > 0 {
			if err := j.fill(r, l, part, i); err != nil {
				return err
			}
		}
		if err := l.setHyper(t.hyper); err != nil {
			return err
		}
		if err := r.ready(l, part.active, ir.Runtime{Seed: t.cfg.seed, Step: uint64(t.updates), FirstSample: part.share.Lo}); err != nil {
			return err
		}
		var out []byte // the loss, the only thing in a training program's output
		if part.last && l.mem[ir.Output] != nil && r == t.team.ranks[0] {
			out = t.team.loss[:]
		}
		exec, starts := l.exec.(ir.Starter)
		if !starts {
			if err := l.run(ctx, out); err != nil {
				return err
			}
			continue
		}
		run, err := exec.Start(ctx, &l.rt)
		if err != nil {
			return err
		}
		if j.late != nil && j.plan.parts == 1 {
			j.late.steps[r.index-t.Rank()] = lateStep{exec, run}
			continue
		}
		if err := exec.Wait(run, out); err != nil {
			return err
		}
	}
	return nil
}

// followOthers takes part, with zeros, in the collectives of other ranks' programs.
func (r *rank) followOthers(ctx context.Context, part *run) error {
	if len(part.shadow) == 0 {
		return nil
	}
	c, err := r.programComm(part.active)
	if err != nil {
		return err
	}
	for _, zeros := range part.shadow {
		clear(zeros)
		if err := c.Collective(ctx, ir.Collective{Kind: ir.AllReduce, ActiveOnly: true}, zeros); err != nil {
			return err
		}
	}
	return nil
}

// ready says what is particular to the next run of a program.
func (r *rank) ready(l *loaded, active int, rt ir.Runtime) (err error) {
	if rt.Comm, err = r.programComm(active); err != nil {
		return err
	}
	l.rt = rt
	return nil
}

// setHyper writes a step's scalars, unless they are those of the program's last step.
func (l *loaded) setHyper(values []float32) error {
	m := l.mem[ir.Hyper]
	if m == nil || slices.Equal(l.hyper, values) {
		return nil
	}
	l.hyper = l.hyper[:0]
	if err := m.Write(0, ir.Bytes(values)); err != nil {
		return err
	}
	l.hyper = append(l.hyper, values...)
	return nil
}

// run runs a program whose device can't run ahead, and reads what it put out.
func (l *loaded) run(ctx context.Context, out []byte) error {
	if err := l.exec.Run(ctx, &l.rt); err != nil || len(out) == 0 {
		return err
	}
	return l.mem[ir.Output].Read(0, out)
}
