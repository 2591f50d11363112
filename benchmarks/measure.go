package main

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"
)

// sampling says how thoroughly things are measured.
type sampling struct {
	runs    int           // samples
	minTime time.Duration // of a sample
	cold    bool          // a sample is one call, and nothing is warmed up
}

// timing is what was measured of a function.
type timing struct {
	seconds float64 // a call: the median of the samples
	spread  float64 // half of the distance between the quartiles, as a share of the median
}

// contender does its work n times over and says how long that took. It may stop early when ctx ends.
type contender func(ctx context.Context, n int) (time.Duration, error)

// calls makes a contender of a function of this process.
func calls(fn func() error) contender {
	return func(_ context.Context, n int) (time.Duration, error) {
		start := time.Now()
		for range n {
			if err := fn(); err != nil {
				return 0, err
			}
		}
		return time.Since(start), nil
	}
}

// then makes the end of something part of the time.
func (c contender) then(end func() error) contender {
	return func(ctx context.Context, n int) (time.Duration, error) {
		took, err := c(ctx, n)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		err = end()
		return took + time.Since(start), err
	}
}

// measure times contenders. It warms each up until it has run for a sample's time, then takes their samples in turn, so that whatever
// disturbs the machine meets all of them alike.
func (s sampling) measure(ctx context.Context, contenders ...contender) ([]timing, error) {
	size := make([]int, len(contenders)) // of a sample
	for i, c := range contenders {
		size[i] = 1
		if s.cold {
			continue
		}
		var err error
		if size[i], err = s.warmUp(ctx, c); err != nil {
			return nil, err
		}
	}
	samples := make([][]float64, len(contenders))
	for range s.runs {
		for i, c := range contenders {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			runtime.GC() // what one leaves behind is not for the next to clear away
			took, err := c(ctx, size[i])
			if err != nil {
				return nil, err
			}
			samples[i] = append(samples[i], took.Seconds()/float64(size[i]))
		}
	}
	timings := make([]timing, len(contenders))
	for i := range contenders {
		timings[i] = summarize(samples[i])
	}
	return timings, nil
}

// warmUp runs c until it is in its stride, and returns how often it is to run in a sample.
func (s sampling) warmUp(ctx context.Context, c contender) (int, error) {
	if _, err := c(ctx, 1); err != nil { // the first time compiles and allocates
		return 0, err
	}
	for n := 1; ; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		took, err := c(ctx, n)
		if err != nil || took >= s.minTime {
			return n, err
		}
		// A fifth more than what seems needed; but a time of almost nothing says little.
		need := 1.2 * float64(n) * float64(s.minTime) / max(float64(took), 1)
		n = max(n+1, int(min(need, 100*float64(n))))
	}
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
