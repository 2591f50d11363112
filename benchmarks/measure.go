package main

import (
	"context"
	"math"
	"slices"
	"time"
)

// sampling says how thoroughly things are measured.
type sampling struct {
	runs    int           // samples
	minTime time.Duration // of a sample
}

// timing is what was measured of a function.
type timing struct {
	seconds float64 // a call: the median of the samples
	spread  float64 // half of the distance between the quartiles, as a share of the median
}

// measure times functions that compete. It warms each up until it has run for a sample's time, then takes their samples in turn, so
// that whatever disturbs the machine meets all of them alike. A function stops early with an error, and all do when ctx ends.
func (s sampling) measure(ctx context.Context, fns ...func() error) ([]timing, error) {
	calls := make([]int, len(fns))
	for i, fn := range fns {
		var err error
		if calls[i], err = s.warmUp(ctx, fn); err != nil {
			return nil, err
		}
	}
	samples := make([][]float64, len(fns))
	for range s.runs {
		for i, fn := range fns {
			took, err := repeat(ctx, fn, calls[i])
			if err != nil {
				return nil, err
			}
			samples[i] = append(samples[i], took.Seconds()/float64(calls[i]))
		}
	}
	timings := make([]timing, len(fns))
	for i := range fns {
		timings[i] = summarize(samples[i])
	}
	return timings, nil
}

// warmUp calls fn until it is in its stride, and returns how many calls make a sample.
func (s sampling) warmUp(ctx context.Context, fn func() error) (int, error) {
	if _, err := repeat(ctx, fn, 1); err != nil { // the first call compiles and allocates
		return 0, err
	}
	for n := 1; ; {
		took, err := repeat(ctx, fn, n)
		if err != nil || took >= s.minTime {
			return n, err
		}
		// A fifth more than what seems needed; but a time of almost nothing says little.
		need := 1.2 * float64(n) * float64(s.minTime) / max(float64(took), 1)
		n = max(n+1, int(min(need, 100*float64(n))))
	}
}

// repeat says how long n calls took.
func repeat(ctx context.Context, fn func() error, n int) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	start := time.Now()
	for range n {
		if err := fn(); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// summarize sorts the samples and gives their median and spread.
func summarize(samples []float64) timing {
	slices.Sort(samples)
	t := timing{seconds: quantile(samples, 0.5)}
	if t.seconds > 0 {
		t.spread = (quantile(samples, 0.75) - quantile(samples, 0.25)) / 2 / t.seconds
	}
	return t
}

// quantile is the value that a share q of the sorted samples lies below, interpolated between the two nearest; NaN for none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i == len(sorted)-1 {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
