package exec

import (
	"slices"
	"testing"
)

// contestant is a rank of some that run together: its contest, and the times of its arrangements.
type contestant struct {
	contest
	ms    [numArrangements]float64
	under []int // arrangements of runs that are under way, and timed
}

// runTogether makes so many runs of all together, of which each rank has some under way, and gives the arrangements that rank 0 used.
func runTogether(t *testing.T, n int, ranks []*contestant) (used []int) {
	t.Helper()
	for range n {
		sum := make([]float32, 2*numArrangements)
		used = append(used, ranks[0].now)
		for i, c := range ranks {
			how, timed := c.now, !c.over()
			if timed {
				c.began(how)
				c.under = append(c.under, how)
			}
			if lag := i + 1; len(c.under) > lag || !timed && len(c.under) > 0 {
				c.note(c.under[0], c.ms[c.under[0]])
				c.under = c.under[1:]
			}
			for k, v := range c.ballot() {
				sum[k] += v
			}
		}
		for _, c := range ranks {
			c.decide(slices.Clone(sum))
		}
	}
	return used
}

func rankOf(chain, branches float64) *contestant {
	return &contestant{contest: newContest(inChain, inBranches), ms: [numArrangements]float64{inChain: chain, inBranches: branches}}
}

// untilOver is runs by which a contest is over whose ranks have begun together.
const untilOver = 2*rounds + 2*slots

func TestContest(t *testing.T) {
	sole := func(how int) *contestant {
		return &contestant{contest: newContest(how), ms: [numArrangements]float64{9, 9}}
	}
	for _, c := range []struct {
		name  string
		ranks []*contestant
		want  []int // by rank
	}{
		{"one rank", []*contestant{rankOf(2, 1)}, []int{inBranches}},
		{"a tie", []*contestant{rankOf(1, 1), rankOf(1, 1)}, []int{inChain, inChain}},
		{"what is better for one and worse for the other", []*contestant{rankOf(1, 1.2), rankOf(2, 1.5)}, []int{inBranches, inBranches}},
		{"the other way round", []*contestant{rankOf(1, 1.6), rankOf(2, 1.5)}, []int{inChain, inChain}},
		{"one that has no choice", []*contestant{sole(inChain), rankOf(2, 1)}, []int{inChain, inBranches}},
		{"none that has a choice", []*contestant{sole(inBranches), sole(inChain)}, []int{inBranches, inChain}},
	} {
		t.Run(c.name, func(t *testing.T) {
			used := runTogether(t, untilOver, c.ranks)
			for r, want := range c.want {
				if !c.ranks[r].over() || c.ranks[r].now != want {
					t.Errorf("rank %d: among %v, now %d, want %d", r, c.ranks[r].among, c.ranks[r].now, want)
				}
			}
			if len(c.ranks) == 2 && c.want[0] == c.want[1] && !slices.Contains(used, 1-c.want[0]) {
				t.Errorf("only %v was tried", used)
			}
		})
	}
}

// TestContestIsOfMedians: odd runs, fast or slow ones, and those at the beginning of a stint, do not count.
func TestContestIsOfMedians(t *testing.T) {
	c := newContest(inChain, inBranches)
	for run := 0; !c.over(); run++ {
		if run > untilOver {
			t.Fatal("it does not end")
		}
		how, ms := c.now, 1.0
		if how == inBranches {
			ms = 0.9
		}
		switch {
		case c.begun[how] < stint:
			ms = 50 // graphs are captured
		case how == inChain && run%stint == 1:
			ms = 0.1
		}
		c.began(how)
		c.note(how, ms)
		c.decide(c.ballot())
	}
	if c.now != inBranches {
		t.Error("the chain has won, by its odd runs")
	}
}

// TestContestOfUnequalRanks: a rank that has loaded its program later than the other, or again, tries the same at the same time from then on, and all
// come to the same end in the same run.
func TestContestOfUnequalRanks(t *testing.T) {
	for before := range 2*rounds + 2 {
		a, b := rankOf(1, 1.2), rankOf(2, 1.5)
		runTogether(t, before, []*contestant{a, rankOf(2, 1.5)})
		if a.over() {
			t.Fatalf("over after %d runs", before)
		}
		pair := []*contestant{a, b}
		for n := 0; !a.over() || !b.over(); n++ {
			if n > 2*untilOver {
				t.Fatalf("%d runs before: it does not end: begun %v and %v", before, a.begun, b.begun)
			}
			runTogether(t, 1, pair)
			if a.now != b.now || a.over() != b.over() {
				t.Fatalf("%d runs before: run %d: arrangements %d and %d, over %v and %v", before, n, a.now, b.now, a.over(), b.over())
			}
		}
		if a.now != inBranches {
			t.Errorf("%d runs before: arrangement %d", before, a.now)
		}
	}
}

// TestMeetings: programs that take turns all find out what is fastest, and then ranks seldom bring ballots, all to the same meetings.
func TestMeetings(t *testing.T) {
	for programs := range 4 {
		var pairs [][2]*contestant
		for range programs + 1 {
			pairs = append(pairs, [2]*contestant{rankOf(1, 1.2), rankOf(2, 1.5)})
		}
		var met [2]Meetings
		brought := 0
		const all, last = 2000, 500
		for run := range all {
			pair := pairs[run%len(pairs)]
			ballots := met[0].next()
			if met[1].next() != ballots {
				t.Fatalf("run %d: one rank brings a ballot", run)
			}
			for _, c := range pair {
				if how := c.now; !c.over() {
					c.began(how)
					c.note(how, c.ms[how])
				}
			}
			if !ballots {
				continue
			}
			if run >= all-last {
				brought++
			}
			sum := make([]float32, 2*numArrangements)
			for _, c := range pair {
				for k, v := range c.ballot() {
					sum[k] += v
				}
			}
			for i, c := range pair {
				met[i].heard(c.decide(sum))
			}
		}
		for i, pair := range pairs {
			if !pair[0].over() || !pair[1].over() || pair[0].now != inBranches || pair[1].now != inBranches {
				t.Errorf("%d programs: program %d: arrangements %d and %d, over %v and %v", len(pairs), i, pair[0].now, pair[1].now, pair[0].over(), pair[1].over())
			}
		}
		if brought > last/seldom+1 {
			t.Errorf("%d programs: %d ballots in the last %d runs", len(pairs), brought, last)
		}
	}
}
