package main

import (
	"fmt"

	"github.com/tandem-train/tandem/cudaops"
)

// capMemory does what --memory-fraction and --memory-limit ask for.
func (o *options) capMemory() error {
	if o.fraction < 1 {
		if err := cudaops.SetPerProcessMemoryFraction(o.fraction); err != nil {
			return fmt.Errorf("--memory-fraction %v: %w", o.fraction, err)
		}
	}
	if o.limit != noSize {
		if err := cudaops.SetDeviceMemoryLimit(int64(o.limit)); err != nil {
			return fmt.Errorf("--memory-limit %v: %w", &o.limit, err)
		}
	}
	return nil
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
