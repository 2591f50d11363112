package main

import (
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
)

// capMemory does what --memory-fraction and --memory-limit ask for.
func (o *options) capMemory() error {
	if o.fraction < 1 {
		if err := cudaops.SetPerProcessMemoryFraction(o.fraction); err != nil {
			return o.capError(fmt.Sprintf("--memory-fraction %v", o.fraction), err)
		}
	}
	if o.limit != noSize {
		if err := cudaops.SetDeviceMemoryLimit(int64(o.limit)); err != nil {
			return o.capError(fmt.Sprintf("--memory-limit %v", &o.limit), err)
		}
	}
	return nil
}

func (o *options) capError(flag string, err error) error {
	var none *cudaops.NoDeviceError
	if errors.As(err, &none) {
		return usagef("%s: %w, or leave it out to train on the host", flag, none)
	}
	return deviceError(err, o)
}

// fitError names the flag that asked for a batch, where it is one that does not fit.
func fitError(flag string, err error) error {
	var fit *dp.FitError
	if errors.As(err, &fit) {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return err
}

// plan says what a step takes of the cards' memory, as the flags ask for it.
func (s *session) plan() error {
	shape := []int{s.opts.batchSize, 1, side, side}
	if s.opts.plan {
		p, err := s.trainer.Plan(shape...)
		if err != nil {
			return fmt.Errorf("--plan: %w", err)
		}
		s.console.resultf("%v", p)
	}
	if s.opts.planPNG == "" || s.trainer.Rank() > 0 {
		return nil
	}
	timeline, err := s.trainer.Timeline(shape...)
	if err == nil {
		err = drawTimeline(timeline, s.opts.planPNG)
	}
	if err != nil {
		return fmt.Errorf("--plan-png %s: %w", s.opts.planPNG, err)
	}
	return nil
}
