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
	var turns []int
	fn := func(i int) contender {
		return func(_ context.Context, n int) (time.Duration, error) {
			turns = append(turns, i)
			return time.Duration(n*(i+1)) * time.Second, nil
		}
	}
	timings, err := sampling{runs: 3, minTime: 4 * time.Second}.measure(context.Background(), fn(0), fn(1))
	if err != nil || len(timings) != 2 {
		t.Fatal(timings, err)
	}
	// Warm-up takes three rounds each: once, once more and too short, then long enough.
	if want := []int{0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1}; !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
	if want := []timing{{seconds: 1}, {seconds: 2}}; !slices.Equal(timings, want) {
		t.Errorf("timings %v, want %v", timings, want)
	}
}

func TestMeasureFillsSamples(t *testing.T) {
	const minTime = time.Millisecond
	n := 0
	timings, err := sampling{runs: 1, minTime: minTime}.measure(context.Background(), calls(func() error { n++; return nil }))
	if err != nil {
		t.Fatal(err)
	}
	// A call of almost nothing is repeated: in the sample, and in warm-up for as long as that.
	if n < 10 || timings[0].seconds <= 0 || timings[0].seconds > 1 {
		t.Errorf("%d calls of %v s", n, timings[0].seconds)
	}
}

func TestMeasureStops(t *testing.T) {
	boom := errors.New("boom")
	if _, err := (sampling{runs: 1}).measure(context.Background(), calls(func() error { return boom })); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	_, err := sampling{runs: 100}.measure(ctx, calls(func() error {
		if n++; n == 5 {
			cancel()
		}
		return nil
	}))
	if !errors.Is(err, context.Canceled) || n != 5 {
		t.Errorf("%d calls, %v", n, err)
	}
}
