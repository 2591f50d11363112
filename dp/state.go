package dp

import (
	"context"

	"github.com/tandem-train/tandem/nn"
)

// StateDict reads the parameters and buffers from the primary card, under PyTorch's names. The model has the same values
// afterwards. In a job of several processes each reads its own card, which has the same values, and waits for no other.
func (t *DataParallel) StateDict() (*nn.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	if err := t.pull(); err != nil {
		return nil, err
	}
	return nn.StateDict(t.compiler.Model)
}

// LoadStateDict gives the model, on every card, the values of s. strict is as for [nn.LoadStateDict]. The optimizer's state and
// the number of updates stay.
//
// In a job of several processes every process calls LoadStateDict. The state is that of rank 0; the others may pass nil.
func (t *DataParallel) LoadStateDict(s *nn.State, strict bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx := context.Background()
	if err := t.meet(ctx, loadCall); err != nil {
		return err
	}
	if t.Rank() == 0 {
		if err := t.load(s, strict); err != nil {
			return t.failed(err)
		}
	}
	if err := t.fromPrimary(ctx); err != nil {
		return t.failed(err)
	}
	return nil
}

// meet waits for the other processes of the job, which make the same call.
func (t *DataParallel) meet(ctx context.Context, call kind) error {
	if err := t.usable(); err != nil || t.procs == nil {
		return err
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	return t.together(ctx, header{call: call})
}

// fromPrimary gives the ranks of other processes, and their models, what rank 0 has on its card.
func (t *DataParallel) fromPrimary(ctx context.Context) error {
	if t.procs == nil {
		return nil
	}
	if err := t.replicate(ctx); err != nil {
		return err
	}
	if err := t.touch(); err != nil {
		return err
	}
	return t.pull()
}

func (t *DataParallel) load(s *nn.State, strict bool) error {
	if err := t.pull(); err != nil {
		return err
	}
	if err := nn.LoadStateDict(t.compiler.Model, s, strict); err != nil {
		return err
	}
	if err := t.push(); err != nil {
		return err
	}
	return t.touch()
}
