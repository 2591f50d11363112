package dp

import (
	"context"
	"encoding/binary"
	"math"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// ahead is how many steps may be under way at once: one that a card computes, one that waits for it there, and one in the making.
const ahead = 3

// Loss is the loss of a step that may still be under way.
type Loss struct {
	t     *DataParallel
	step  *lateStep // nil once the value is known
	value float64
	err   error
}

// lateStep is what a step's end is known by.
type lateStep struct {
	exec ir.Starter
	run  uint64
	read func(dst []byte) error
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
// later. Where steps can't be ahead of their caller, on the host and with several ranks, StepAsync waits for the step.
//
// When a step fails, its Loss says so, and so does the next StepAsync; steps that were under way behind it have been done.
func (t *DataParallel) StepAsync(ctx context.Context, x, y tensor.Tensor) (*Loss, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.usable() != nil:
		return nil, t.usable()
	case t.procs != nil || len(t.team.ranks) > 1:
		loss, err := t.step(ctx, x, y)
		if err != nil {
			return nil, err
		}
		return &Loss{t: t, value: loss}, nil
	}
	return t.async(func(l *Loss) (float64, error) { return t.stepAlone(ctx, x, y, l) })
}

// async does a step that may be under way when it returns, once not too many others are.
func (t *DataParallel) async(step func(late *Loss) (float64, error)) (*Loss, error) {
	for len(t.late) >= ahead {
		if l := t.late[0]; t.settle(l) != nil {
			return nil, l.err
		}
	}
	l := &Loss{t: t}
	loss, err := step(l)
	if err != nil {
		return nil, err
	}
	if l.step == nil {
		l.value = loss
	} else {
		t.late = append(t.late, l)
	}
	return l, nil
}

// settle waits for a step, and for those before it.
func (t *DataParallel) settle(l *Loss) error {
	if l.step == nil {
		return l.err
	}
	for len(t.late) > 0 {
		first := t.late[0]
		t.late = append(t.late[:0], t.late[1:]...)
		first.value, first.err = first.step.end()
		first.step = nil
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

// end waits for the step.
func (s *lateStep) end() (float64, error) {
	var loss [4]byte
	if err := s.exec.Wait(s.run); err != nil {
		return 0, err
	}
	if err := s.read(loss[:]); err != nil {
		return 0, err
	}
	return float64(math.Float32frombits(binary.NativeEndian.Uint32(loss[:]))), nil
}
