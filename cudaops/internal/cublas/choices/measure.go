package choices

import (
	"errors"
	"math"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Fastest measures n candidates, the best guess first, and returns the fastest. One that fails is none; when all fail, so does Fastest. The
// card's clock changes while it is busy: so all are measured in turn, some times, and the least time of each counts. A later candidate must be
// faster than an earlier one by more than measuring errs.
func Fastest(n int, measure func(i int) (ms float64, err error)) (int, error) {
	const (
		rounds = 3
		margin = 0.97
		hope   = 1.5 // beyond this much slower than the fastest once, a candidate is out
	)
	least := make([]float64, n)
	best := math.Inf(1)
	var errs []error
	for i := range least {
		ms, err := measure(i)
		if err != nil {
			errs = append(errs, err)
			ms = math.Inf(1)
		}
		least[i] = ms
		best = min(best, ms)
	}
	if math.IsInf(best, 1) {
		return 0, errors.Join(append(errs, errors.New("no algorithm to choose"))...)
	}
	for range rounds - 1 {
		for i := range least {
			if least[i] > hope*best {
				continue
			}
			ms, err := measure(i)
			if err != nil {
				return 0, err
			}
			least[i] = min(least[i], ms)
		}
	}
	fastest := 0
	for i := range least {
		if least[i] < margin*least[fastest] {
			fastest = i
		}
	}
	return fastest, nil
}

// Measure returns how many milliseconds the card takes for what run puts into a stream. It is run some times, in a graph, so that the time
// of the calls themselves does not count; what it works on must be ready. Measure waits for the card.
func Measure(api *cuda.API, run func(s cuda.Stream) error) (ms float64, err error) {
	const enough, most = 0.5, 20 // milliseconds, runs
	s, err := api.StreamCreate()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, api.StreamDestroy(s)) }()
	// The first run loads kernels, which must not happen while the stream is captured. The second, which its calls may hold up, says how many
	// are worth it.
	if err := run(s); err != nil {
		return 0, err
	}
	if ms, err = elapsed(api, s, func() error { return run(s) }); err != nil {
		return 0, err
	}
	runs := min(int(enough/max(ms, enough/most))+1, most)
	graph, err := api.Capture(s, func() error {
		for range runs {
			if err := run(s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, api.GraphExecDestroy(graph)) }()
	launch := func() error { return api.GraphLaunch(graph, s) }
	if err := launch(); err != nil {
		return 0, err
	}
	ms, err = elapsed(api, s, launch)
	return ms / float64(runs), err
}

// elapsed is the time of what do puts into a stream.
func elapsed(api *cuda.API, s cuda.Stream, do func() error) (ms float64, err error) {
	var events [2]cuda.Event
	for i := range events {
		if events[i], err = api.EventCreate(true); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, api.EventDestroy(events[i])) }()
	}
	if err := api.EventRecord(events[0], s); err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	if err := errors.Join(api.EventRecord(events[1], s), api.EventSynchronize(events[1])); err != nil {
		return 0, err
	}
	t, err := api.EventElapsed(events[0], events[1])
	return float64(t), err
}
