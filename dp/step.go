package dp

import (
	"context"
	"encoding/binary"
	"math"
	"unsafe"

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
func (t *DataParallel) Step(ctx context.Context, x, y tensor.Tensor) (float64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	bx, err := t.input(x)
	if err != nil {
		return 0, err
	}
	plan, err := t.stepPlan(bx)
	if err != nil {
		return 0, err
	}
	by, err := t.target(y, plan)
	if err != nil {
		return 0, err
	}
	for _, c := range plan.checks {
		b := by
		if c.Slot.Name != plan.target.Name {
			b = bx
		}
		if err := verify(c, b); err != nil {
			return 0, err
		}
	}
	lr := t.compiler.Optimizer.LR()
	if t.cfg.schedule != nil {
		lr = t.cfg.schedule.LR(lr, t.updates)
	}
	for i, h := range t.compiler.Optimizer.HyperAt(t.updates+1, lr) {
		t.hyper[i] = float32(h)
	}
	t.job = stepJob{t: t, plan: plan, x: bx, y: by}
	if err := t.team.do(ctx, &t.job); err != nil {
		if e := t.regroup(); e != nil {
			return 0, e
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, err
	}
	t.updates++
	return t.job.loss, nil
}

// target passes y through the door, as the plan's programs want it.
func (t *DataParallel) target(y tensor.Tensor, p *stepPlan) (batch, error) {
	slot := p.target
	if y == nil {
		return batch{}, inputError("target", nil, "there is none: the loss takes %s%v", slot.DType, p.want)
	}
	if !p.want.Equal(ir.Shape(y.Shape())) {
		return batch{}, inputError("target", y, "the loss takes %s%v for an input of shape %v", slot.DType, p.want, p.shape)
	}
	if slot.DType == ir.I32 {
		return t.door.y.intsOf("target", y)
	}
	return t.door.y.floatsOf("target", y)
}

// stepJob is a step on every rank.
type stepJob struct {
	t    *DataParallel
	plan *stepPlan
	x, y batch
	loss float64 // written by the first rank
}

func (j *stepJob) run(ctx context.Context, r *rank) error {
	t := j.t
	for i := range j.plan.ranks[r.index] {
		part := &j.plan.ranks[r.index][i]
		l, err := r.load(part.prog.Program)
		if err != nil {
			return err
		}
		if part.share.Len() > 0 {
			in := l.mem[ir.Input]
			if err := scatter(in, part.prog.x.Offset, j.x, t.cfg.dim, part.share); err != nil {
				return err
			}
			if err := scatter(in, part.prog.y.Offset, j.y, j.plan.dimY, part.share); err != nil {
				return err
			}
		}
		if h := l.mem[ir.Hyper]; h != nil {
			if err := h.Write(0, ir.Bytes(t.hyper)); err != nil {
				return err
			}
		}
		if err := r.execute(ctx, l, part.active, ir.Runtime{Seed: t.cfg.seed, Step: uint64(t.updates), FirstSample: part.share.Lo}); err != nil {
			return err
		}
		if part.last && r.index == 0 {
			if j.loss, err = r.readLoss(l.mem[ir.Output]); err != nil {
				return err
			}
		}
	}
	return nil
}

// execute runs a loaded program.
func (r *rank) execute(ctx context.Context, l *loaded, active int, rt ir.Runtime) error {
	c, err := r.programComm(l, active)
	if err != nil {
		return err
	}
	rt.Comm = c
	l.rt = rt
	return l.exec.Run(ctx, &l.rt)
}

// readLoss reads the loss, the only thing in a training program's output.
func (r *rank) readLoss(m ir.DeviceMemory) (float64, error) {
	if err := m.Read(0, r.loss[:]); err != nil {
		return 0, err
	}
	return float64(math.Float32frombits(binary.NativeEndian.Uint32(r.loss[:]))), nil
}

// scatter writes the samples of a share, along dim of b, to m at an offset in elements.
func scatter(m ir.DeviceMemory, offset int, b batch, dim int, share data.Range) error {
	inner := 4
	for _, d := range b.shape[dim+1:] {
		inner *= d
	}
	outer := 1
	for _, d := range b.shape[:dim] {
		outer *= d
	}
	n := b.shape[dim]
	at := int64(4 * offset)
	for o := range outer {
		piece := b.bytes[(o*n+share.Lo)*inner : (o*n+share.Hi)*inner]
		if err := m.Write(at, piece); err != nil {
			return err
		}
		at += int64(len(piece))
	}
	return nil
}

func asInts(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
