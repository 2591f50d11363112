package exec

// contest finds the fastest arrangement by the first runs: they take turns, and the card times them. All give the same bits.
type contest struct {
	among []int                    // arrangements; the only one, when it is over
	least [numArrangements]float64 // milliseconds; 0 where there are none
	timed int                      // runs
}

// rounds is how often each arrangement is timed; the least time counts.
const rounds = 8

func (c *contest) over() bool { return len(c.among) == 1 }

// turn is the arrangement of a run.
func (c *contest) turn(run uint64) int { return c.among[run%uint64(len(c.among))] }

// note counts a run that took so many milliseconds, and ends the contest after the last one.
func (c *contest) note(arrangement int, ms float64) {
	if least := &c.least[arrangement]; *least == 0 || ms < *least {
		*least = ms
	}
	if c.timed++; c.timed < rounds*len(c.among) {
		return
	}
	fastest := c.among[0]
	for _, a := range c.among {
		if c.least[a] < c.least[fastest] {
			fastest = a
		}
	}
	c.among = []int{fastest}
}
