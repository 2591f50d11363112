package dp

import (
	"context"
	"time"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// ahead is how many steps may be under way at once: one that a card computes, one that waits for it there, and one in the making.
const ahead = 3

// Loss is the loss of a step that may still be under way.
type Loss struct {
	t     *DataParallel
	steps []lateStep // of this process's ranks; nil once the value is known
	value float64
	err   error

	began   time.Time // of a step under way
	samples int       // that it has on this process's ranks
}

// lateStep is what the end of a rank's step is known by.
type lateStep struct {
	exec ir.Starter // nil: the step has been waited for
	run  uint64
}

// Value waits for the step and returns its loss, as it was before the update, or the error that ended it.
func (l *Loss) Value() (float64, error) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	_ = l.t.settle(l) // which is l.err
	return l.value, l.err
}

// StepAsync is [DataParallel.Step] without waiting for the card: it returns when the batch is on its way there, so that the next one can be
// prepared while the card computes. Nothing is to be gained by asking for the loss of every step at once; ask now and then, or a step
// later. Where steps can't be ahead of their caller, on the host and with micro-batches, StepAsync waits for the step.
//
// When a step fails, its Loss says so, and so does the next StepAsync; steps that were under way behind it have been done.
//
// In a job of several processes every process calls StepAsync, or some call Step. They wait for each other, but not for their cards.
func (t *DataParallel) StepAsync(ctx context.Context, x, y tensor.Tensor) (*Loss, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	return t.async(func(l *Loss) (float64, error) { return t.step(ctx, x, y, l) })
}

// StepShardAsync is [DataParallel.StepShard] without waiting for the card, as StepAsync is Step.
func (t *DataParallel) StepShardAsync(ctx context.Context, x, y tensor.Tensor) (*Loss, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	return t.async(func(l *Loss) (float64, error) { return t.stepShard(ctx, x, y, l) })
}

// async does a step that may be under way when it returns, once not too many others are.
func (t *DataParallel) async(step func(late *Loss) (float64, error)) (*Loss, error) {
	t.meter.began = time.Now()
	for len(t.late) >= ahead {
		if l := t.late[0]; t.settle(l) != nil {
			return nil, l.err
		}
	}
	l := &Loss{t: t, steps: make([]lateStep, len(t.team.ranks))}
	loss, err := step(l)
	if err != nil {
		return nil, err
	}
	if l.steps[0].exec == nil {
		l.value, l.steps = loss, nil
	} else {
		t.late = append(t.late, l)
	}
	return l, nil
}

// settle waits for a step, and for those before it.
func (t *DataParallel) settle(l *Loss) error {
	if l.steps == nil {
		return l.err
	}
	for len(t.late) > 0 {
		first := t.late[0]
		t.late = append(t.late[:0], t.late[1:]...)
		first.value, first.err = first.end()
		first.steps = nil
		switch {
		case first.err == nil:
			t.meter.done(first.began, first.samples, first.value)
		case t.procs != nil:
			first.err = t.failed(first.err)
		}
		if first == l {
			break
		}
	}
	return l.err
}

// settleAll waits for every step that is under way.
func (t *DataParallel) settleAll() (err error) {
	for len(t.late) > 0 {
		if e := t.settle(t.late[0]); err == nil {
			err = e
		}
	}
	return err
}

// end waits for the step on all ranks of this process.
func (l *Loss) end() (float64, error) {
	t := &l.t.team
	loss := t.loss[:] // of the first rank
	for i, s := range l.steps {
		t.errs[i] = s.exec.Wait(s.run, loss)
		loss = nil
	}
	if err := t.first(t.errs); err != nil {
		return 0, err
	}
	return t.lossRead(), nil
}
