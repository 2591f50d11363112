package exec

import (
	"math"
	"slices"
)

// contest finds the fastest arrangement by the first runs, which the card times. All arrangements give the same bits.
//
// Cards that exchange within a run wait for each other, so what a rank does makes the others slow or fast. Ranks therefore try the same arrangement
// at the same time, and take the one that takes all of them together the least: before runs they add up their ballots. A rank that has
// nothing to find out has an empty one. Nobody counts on others having made as many runs: programs may have been loaded at other times there.
type contest struct {
	among []int // arrangements; the only one, when it is over
	now   int   // the arrangement of the next run
	begun [numArrangements]int
	times [numArrangements][]float64 // milliseconds that runs took which are done
	own   Ballot
}

// A run is behind one of the other arrangement in every card's stream, and may pay for what that has left behind. So several runs in one
// arrangement follow each other: as many as have graphs to capture at first. The time that counts is the median, on which these and odd ones have no influence.
const (
	stint  = slots
	rounds = 3 * stint
)

// Ballot is what a rank tells the others before a run: how long each arrangement takes, infinity while that is not known, and the one that it would try next.
type Ballot [2 * numArrangements]float32

func newContest(among ...int) contest {
	c := contest{among: among, now: among[0]}
	if !c.over() {
		for _, a := range among {
			c.times[a] = make([]float64, 0, rounds)
		}
	}
	return c
}

func (c *contest) over() bool { return len(c.among) == 1 }

// ballot is this rank's. It is valid until the next call.
func (c *contest) ballot() []float32 {
	clear(c.own[:])
	if c.over() {
		return c.own[:]
	}
	next := c.among[0]
	for _, a := range c.among {
		c.own[a] = median(c.times[a])
		if c.begun[a]/stint < c.begun[next]/stint {
			next = a
		}
	}
	c.own[numArrangements+next] = 1
	return c.own[:]
}

// decide takes the sum of all ranks' ballots: the contest is over when all times are known, else it says what comes next. In both, the first of equal ones
// counts. It reports whether any rank had a wish.
func (c *contest) decide(sum []float32) (wish bool) {
	times, wishes := sum[:numArrangements], sum[numArrangements:]
	if c.over() {
		return slices.Max(wishes) > 0
	}
	fastest := c.among[0]
	c.now = c.among[0]
	known := true
	for _, a := range c.among {
		known = known && !math.IsInf(float64(times[a]), 1)
		if times[a] < times[fastest] {
			fastest = a
		}
		if wishes[a] > wishes[c.now] {
			c.now = a
		}
	}
	if known {
		c.among, c.now = []int{fastest}, fastest
	}
	return true
}

// began counts a run that is timed.
func (c *contest) began(arrangement int) { c.begun[arrangement]++ }

// note takes a run's time.
func (c *contest) note(arrangement int, ms float64) {
	if t := c.times[arrangement]; len(t) < rounds {
		c.times[arrangement] = append(t, ms)
	}
}

// median is that of all rounds; there is none before.
func median(ms []float64) float32 {
	if len(ms) < rounds {
		return float32(math.Inf(1))
	}
	var sorted [rounds]float64
	copy(sorted[:], ms)
	slices.Sort(sorted[:])
	return float32(sorted[rounds/2])
}
