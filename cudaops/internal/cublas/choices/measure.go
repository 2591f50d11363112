package choices

import (
	"errors"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Fastest measures n candidates, the best guess first, and returns the fastest. One that fails is none; when all fail, so does Fastest. A later
// one must be faster than an earlier one by more than measuring errs.
func Fastest(n int, measure func(i int) (ms float64, err error)) (int, error) {
	const margin = 0.97
	best, least := -1, 0.0
	var errs []error
	for i := range n {
		ms, err := measure(i)
		switch {
		case err != nil:
			errs = append(errs, err)
		case best < 0 || ms < margin*least:
			best, least = i, ms
		}
	}
	if best < 0 {
		return 0, errors.Join(errs...)
	}
	return best, nil
}

// Measure returns how many milliseconds the card takes for what run puts into the stream. It runs it some times, and waits for it.
func Measure(api *cuda.API, stream cuda.Stream, run func() error) (ms float64, err error) {
	const enough, most = 1.0, 20 // milliseconds, runs
	var events [2]cuda.Event
	for i := range events {
		if events[i], err = api.EventCreate(true); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, api.EventDestroy(events[i])) }()
	}
	time := func(runs int) (float64, error) {
		if err := api.EventRecord(events[0], stream); err != nil {
			return 0, err
		}
		for range runs {
			if err := run(); err != nil {
				return 0, err
			}
		}
		if err := errors.Join(api.EventRecord(events[1], stream), api.EventSynchronize(events[1])); err != nil {
			return 0, err
		}
		ms, err := api.EventElapsed(events[0], events[1])
		return float64(ms) / float64(runs), err
	}
	// The first run loads kernels. The second says how many more are worth it; of three groups the fastest counts.
	if _, err := time(1); err != nil {
		return 0, err
	}
	if ms, err = time(1); err != nil {
		return 0, err
	}
	runs := min(int(enough/max(ms, enough/most))+1, most)
	for range 3 {
		mean, err := time(runs)
		if err != nil {
			return 0, err
		}
		ms = min(ms, mean)
	}
	return ms, nil
}
