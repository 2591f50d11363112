package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/metrics"
	"github.com/tandem-train/tandem/tensorboard"
)

// watch shows training to others, as --metrics-addr and --logdir ask for it. stop ends that.
func (s *session) watch() (stop func() error, err error) {
	var ends []func() error
	stop = func() error {
		var errs []error
		for _, end := range ends {
			errs = append(errs, end())
		}
		return errors.Join(errs...)
	}
	if s.opts.metrics != "" {
		server, err := metrics.Serve(s.opts.metrics, s.trainer)
		if err != nil {
			return nil, usagef("--metrics-addr: %w", err)
		}
		ends = append(ends, server.Close)
		s.console.notef("metrics for Prometheus: %s", server.URL())
	}
	if s.opts.logDir != "" && s.trainer.Rank() == 0 {
		events, err := tensorboard.Create(s.opts.logDir)
		if err != nil {
			return nil, errors.Join(usagef("--logdir %s: %w", s.opts.logDir, err), stop())
		}
		ends = append(ends, events.Close)
		s.curves = &curves{events: events}
	}
	return stop, nil
}

// curves are what TensorBoard shows of a session. Of a nil pointer it shows nothing.
type curves struct {
	events *tensorboard.Writer
	every  int // steps between points

	images int // since the last point
	since  time.Time
}

// pointsPerEpoch is how many points a curve has of an epoch, at least where that has so many steps, and less than twice as many.
const pointsPerEpoch = 200

// epoch begins one of so many steps.
func (c *curves) epoch(steps int) {
	if c != nil {
		c.every, c.images, c.since = max(1, steps/pointsPerEpoch), 0, time.Now()
	}
}

// step draws the points of the session's last step, if it has some.
func (c *curves) step(s *session, images int) error {
	if c == nil {
		return nil
	}
	c.images += images
	if s.reached.steps%c.every != 0 {
		return nil
	}
	now := time.Now()
	points := map[string]float64{
		"loss/train":                   s.reached.loss,
		"throughput/images_per_second": float64(c.images) / now.Sub(c.since).Seconds(),
	}
	c.images, c.since = 0, now
	all, err := memories(s.trainer)
	if err != nil {
		return err
	}
	for _, m := range all {
		name := "memory/" + strings.ReplaceAll(cudaops.String(m.Logical), ":", "")
		points[name+"_allocated_bytes"], points[name+"_reserved_bytes"] = float64(m.Allocated), float64(m.Reserved)
	}
	return c.draw(s.reached.steps, points)
}

// tested draws how well the model did.
func (c *curves) tested(r *progress) error {
	if c == nil {
		return nil
	}
	return c.draw(r.steps, map[string]float64{"accuracy/test": r.accuracy})
}

func (c *curves) draw(step int, points map[string]float64) error {
	for _, tag := range slices.Sorted(maps.Keys(points)) {
		if err := c.events.Scalar(tag, step, points[tag]); err != nil {
			return fmt.Errorf("--logdir: %w", err)
		}
	}
	return nil
}
