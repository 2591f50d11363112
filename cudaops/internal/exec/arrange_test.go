package exec

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestByNeed(t *testing.T) {
	for _, c := range []struct {
		name  string
		after [][]int
		want  []int
	}{
		{"a chain", [][]int{{}, {0}, {1}}, []int{0, 1, 2}},
		{"what most follow on, first", [][]int{{}, {}, {}, {1}, {3}}, []int{1, 3, 4, 0, 2}},
		{"one beside the last but one", [][]int{{}, {}, {1}, {2}, {0, 3}}, []int{1, 2, 3, 0, 4}},
		{"two ways of one length, as they come", [][]int{{}, {0}, {0}, {1, 2}}, []int{0, 1, 2, 3}},
	} {
		if got := byNeed(c.after); !slices.Equal(got, c.want) {
			t.Errorf("%s: order %v, want %v", c.name, got, c.want)
		}
	}
}

// Whatever a task conflicts with is done when it begins, in any order that kernels launched early may take; and many do not wait.
func TestOvertakingKeepsTheOrderOfConflicts(t *testing.T) {
	overtaking := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		p, tasks := randomPlan(rng, 2+rng.IntN(30))
		p.turns = []bool{true, false} // whether kernels wait by themselves
		for i, t := range tasks {
			switch rng.IntN(6) {
			case 0:
				l := t.do.(launch)
				l.kernel = 1
				tasks[i].do = l
			case 1:
				if t.on == nil {
					tasks[i].do = joint{} // which waits by itself, at its start
				}
			}
		}
		takesTurns := func(t *task) bool {
			l, own := t.do.(launch)
			return !own || p.turns[l.kernel]
		}
		var list []task
		for _, i := range byNeed(p.dependencies(tasks)) {
			list = append(list, tasks[i])
		}
		after := p.dependencies(list)
		turns := branches(after, 1, func(int) int { return 0 })
		overtake(list, after, turns, takesTurns)
		done := 0 // so many of the tasks are, when those begin that overtake
		for i, turn := range turns {
			_, own := list[i].do.(launch)
			if turn.late && (!turn.early || !own) || turn.early && (i == 0 || !takesTurns(&list[i])) {
				t.Fatalf("seed %d: task %d: turn %+v", seed, i, turn)
			}
			if !turn.late {
				done = i
			} else {
				overtaking++
			}
			if turn.early && !takesTurns(&list[max(i-1, 0)]) {
				t.Fatalf("seed %d: task %d is early after one that does not let it", seed, i)
			}
			for d, other := range list[done:i] {
				for _, s := range p.spans(list[i]) {
					if slices.ContainsFunc(p.spans(other), s.conflict) {
						t.Fatalf("seed %d: task %d may run beside %d", seed, i, done+d)
					}
				}
			}
		}
		// The new order is one of the same conflicts.
		for i, x := range list {
			for _, y := range list[:i] {
				before := slices.IndexFunc(tasks, func(t task) bool { return sameTask(t, y) })
				here := slices.IndexFunc(tasks, func(t task) bool { return sameTask(t, x) })
				if before > here && slices.ContainsFunc(p.spans(x), func(s span) bool { return slices.ContainsFunc(p.spans(y), s.conflict) }) {
					t.Fatalf("seed %d: tasks %d and %d have changed places", seed, before, here)
				}
			}
		}
	}
	if overtaking < 100 {
		t.Errorf("only %d tasks overtake", overtaking)
	}
}

// sameTask reports whether two tasks of a random plan are one: each is of another step.
func sameTask(a, b task) bool {
	return a.step == b.step && slices.Equal(a.on, b.on) && slices.Equal(a.more, b.more)
}
