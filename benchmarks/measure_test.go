package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{[]float64{3}, 0.5, 3},
		{[]float64{3}, 1, 3},
		{[]float64{1, 2}, 0.5, 1.5},
		{[]float64{1, 2, 10}, 0.5, 2},
		{[]float64{1, 2, 3, 4, 5}, 0.25, 2},
		{[]float64{1, 2, 3, 4, 5}, 1, 5},
		{[]float64{0, 10}, 0.75, 7.5},
	} {
		if got := quantile(c.samples, c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", c.samples, c.q, got, c.want)
		}
	}
	if got := quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("of nothing: %v", got)
	}
}

func TestSummarize(t *testing.T) {
	// An outlier moves neither the median nor the quartiles.
	got := summarize([]float64{9000, 12, 10, 8, 9})
	if want := (timing{seconds: 10, spread: (12. - 9) / 2 / 10}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := summarize([]float64{0, 0}); got != (timing{}) {
		t.Errorf("zeros: %v", got)
	}
}

func TestMeasureTakesTurns(t *testing.T) {
	var calls []int
	fn := func(i int) func() error {
		return func() error { calls = append(calls, i); return nil }
	}
	timings, err := sampling{runs: 3}.measure(context.Background(), fn(0), fn(1))
	if err != nil || len(timings) != 2 {
		t.Fatal(timings, err)
	}
	if want := []int{0, 0, 1, 1, 0, 1, 0, 1, 0, 1}; !slices.Equal(calls, want) {
		t.Errorf("calls %v, want %v", calls, want)
	}
}

func TestMeasureFillsSamples(t *testing.T) {
	const minTime = time.Millisecond
	calls := 0
	timings, err := sampling{runs: 1, minTime: minTime}.measure(context.Background(), func() error { calls++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	// A call of almost nothing is repeated: in the sample, and in warm-up for as long as that.
	if calls < 10 || timings[0].seconds <= 0 || timings[0].seconds > 1 {
		t.Errorf("%d calls of %v s", calls, timings[0].seconds)
	}
}

func TestMeasureStops(t *testing.T) {
	boom := errors.New("boom")
	if _, err := (sampling{runs: 1}).measure(context.Background(), func() error { return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	calls := 0
	_, err := sampling{runs: 100}.measure(ctx, func() error {
		if calls++; calls == 5 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || calls != 5 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
