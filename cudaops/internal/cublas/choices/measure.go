package choices

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Pace says for how long a candidate is measured.
type Pace uint8

// The paces.
const (
	Brief     Pace = iota // a few runs
	Sustained             // on a card that it has kept busy for so long that it is as slow as its power limit makes it
)

// Fastest measures n candidates, the best guess first, and returns the fastest. One that fails is none; when all fail, so does Fastest. The
// card's clock changes while it is busy: so all are measured in turn, some times, and the least time of each counts. A later candidate must be
// faster than an earlier one by more than measuring errs. Of [Heavy] work, those that come close to the fastest are measured at the sustained pace as well, which
// decides.
func Fastest(n int, heavy bool, measure func(i int, pace Pace) (ms float64, err error)) (int, error) {
	const (
		rounds = 3
		margin = 0.97
		hope   = 1.5 // beyond this much slower than the fastest once, a candidate is out
	)
	least := make([]float64, n)
	best := math.Inf(1)
	var errs []error
	for i := range least {
		ms, err := measure(i, Brief)
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
			ms, err := measure(i, Brief)
			if err != nil {
				return 0, err
			}
			least[i] = min(least[i], ms)
		}
	}
	if !heavy {
		return first(least, margin), nil
	}
	return steadiest(least, func(i int) (float64, error) { return measure(i, Sustained) })
}

// first is the earliest candidate that no later one beats by more than the margin.
func first(ms []float64, margin float64) (fastest int) {
	for i := range ms {
		if ms[i] < margin*ms[fastest] {
			fastest = i
		}
	}
	return fastest
}

// steadiest decides by another measurement between the few candidates that take the least time, if they are near the best. It goes on without a pause until the
// card is as slow as it will be, and then measures all in turn, some times. The median counts: the least would be that of a moment when the card was cool. What is less than 2 % faster
// alone may be slower among other work: the library's better guess stays.
func steadiest(least []float64, measure func(i int) (ms float64, err error)) (int, error) {
	const (
		most   = 6
		near   = 1.04
		before = 5
		rounds = 3
		margin = 0.98
	)
	list := within(least, near)
	slices.SortStableFunc(list, func(i, j int) int { return cmp.Compare(least[i], least[j]) })
	list = list[:min(most, len(list))]
	if len(list) == 1 {
		return list[0], nil
	}
	slices.Sort(list)
	for k := range before {
		if _, err := measure(list[k%len(list)]); err != nil {
			return 0, err
		}
	}
	times := make([][]float64, len(least))
	for range rounds {
		for _, i := range list {
			ms, err := measure(i)
			if err != nil {
				return 0, err
			}
			times[i] = append(times[i], ms)
		}
	}
	medians := slices.Repeat([]float64{math.Inf(1)}, len(least))
	for _, i := range list {
		slices.Sort(times[i])
		medians[i] = times[i][rounds/2]
	}
	return first(medians, margin), nil
}

// within lists the candidates that take no more than the least time by a factor.
func within(ms []float64, factor float64) (list []int) {
	for i := range ms {
		if ms[i] <= factor*slices.Min(ms) {
			list = append(list, i)
		}
	}
	return list
}

// Heavy reports whether a product of so many multiplications is heavy work: a card that does many of these soon draws as much power as it may, and slows
// down. What is fastest then is what needs the least energy, which may be another algorithm than on a card that is cool.
func Heavy(multiplications int) bool { return multiplications >= 1<<36 }

// Measure returns how many milliseconds the card takes for what run puts into a stream. It is run some times, in a graph, so that the time
// of the calls themselves does not count; what it works on must be ready. Measure waits for the card.
func Measure(api *cuda.API, pace Pace, run func(s cuda.Stream) error) (ms float64, err error) {
	const most = 20                        // runs
	enough, before, timed := 0.5, 0.0, 0.0 // milliseconds: of a graph, of graphs before some are timed, of those
	if pace == Sustained {
		enough, before, timed = 5, 25, 35 // a card that was busy with something else takes so long to find its clock
	}
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
	ms = max(ms, enough/most)
	runs := min(int(enough/ms)+1, most)
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
	launches := func(long float64) int { return 1 + int(long/(ms*float64(runs))) }
	launch := func(n int) error {
		for range n {
			if err := api.GraphLaunch(graph, s); err != nil {
				return err
			}
		}
		return nil
	}
	if err := launch(launches(before)); err != nil {
		return 0, err
	}
	n := launches(timed)
	ms, err = elapsed(api, s, func() error { return launch(n) })
	return ms / float64(runs*n), err
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
