package dp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
)

// TornError is the error of a trainer whose cards were cut off in the middle of an exchange, or that has loaded half of a checkpoint, because one
// of its cards or processes has failed: parameters and optimizer state are not to be used any more. Make a new trainer from the last checkpoint.
type TornError struct{ Err error }

func (e *TornError) Error() string {
	return fmt.Sprintf("dp: make a new trainer, from the last checkpoint: %v", e.Err)
}

// Unwrap returns what has cut them off.
func (e *TornError) Unwrap() error { return e.Err }

// usable is the error of calls on a trainer that is closed or torn, or nil.
func (t *DataParallel) usable() error {
	if t.closed {
		return ErrClosed
	}
	if t.torn != nil {
		return t.torn
	}
	return nil
}

// linkCards lets the ranks' cards exchange by themselves, where they can. The ranks' group is new.
func (t *DataParallel) linkCards(ctx context.Context) error {
	if t.WorldSize() == 1 {
		return nil
	}
	return t.team.do(ctx, linkJob{t})
}

type linkJob struct{ t *DataParallel }

func (j linkJob) run(ctx context.Context, r *rank) error {
	dev, can := r.dev.(ir.Joiner)
	all := make([]float32, r.group.Size())
	if can {
		all[r.index] = 1
	}
	if err := r.group.AllGather(ctx, all); err != nil {
		return err
	}
	if slices.Contains(all, 0) {
		return nil
	}
	peers, err := comm.ForProgram(r.group, r.group.Size())
	if err != nil {
		return err
	}
	link, err := dev.Join(ctx, peers, j.t.largest(r))
	var unlinked *ir.UnlinkedError
	if errors.As(err, &unlinked) {
		j.t.tellUnlinked(r, unlinked)
		return nil
	}
	if err != nil {
		return err
	}
	r.link = link
	if note := link.Note(); note != "" && r.index == 0 {
		j.t.tell(note)
	}
	return nil
}

// largest is the bytes of the largest collective among all ranks.
func (t *DataParallel) largest(r *rank) int64 {
	size := t.sizes(r.index)
	return 4 * int64(max(size[ir.Params], size[ir.Grads], size[ir.Buffers]))
}

// tellUnlinked says once why cards are not linked: on rank 0, and on the rank whose fault it is, which knows more.
func (t *DataParallel) tellUnlinked(r *rank, why *ir.UnlinkedError) {
	if r.index != 0 && (r.index != why.Rank || t.Rank() == 0) {
		return
	}
	t.tell(why.Error())
}

// tell warns of how cards are linked, once.
func (t *DataParallel) tell(what string) { t.linkTold.Do(func() { t.cfg.logger.Warn(what) }) }

// unlink ends the ranks' links, with the programs that use them.
func (t *DataParallel) unlink() error {
	for _, r := range t.team.ranks {
		if r.link == nil {
			return nil // on all ranks or on none
		}
	}
	return t.team.do(context.Background(), rankFunc(func(r *rank) error {
		errs := []error{r.unload(func(*ir.Program) bool { return true })}
		err := r.link.Err()
		errs = append(errs, r.link.Close())
		r.link = nil
		if err != nil {
			errs = append(errs, &TornError{err})
		}
		return errors.Join(errs...)
	}))
}
