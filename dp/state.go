package dp

import "github.com/tandem-train/tandem/nn"

// StateDict reads the parameters and buffers from the primary card, under PyTorch's names. The model has the same values
// afterwards.
func (t *DataParallel) StateDict() (*nn.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if err := t.pull(); err != nil {
		return nil, err
	}
	return nn.StateDict(t.compiler.Model)
}

// LoadStateDict gives the model, on every card, the values of s. strict is as for [nn.LoadStateDict]. The optimizer's state and
// the number of updates stay.
func (t *DataParallel) LoadStateDict(s *nn.State, strict bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	if err := t.pull(); err != nil {
		return err
	}
	if err := nn.LoadStateDict(t.compiler.Model, s, strict); err != nil {
		return err
	}
	return t.push()
}
