package exec

import (
	"cmp"
	"slices"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// BranchesVariable says how tasks are arranged in graphs: "off" as chains, "on" in branches; without it, it is found out what is faster.
const BranchesVariable = "TANDEM_CUDA_BRANCHES"

// arrangement is an order of a part's tasks, the turns in which they come, and the graphs that are made so, by image of the control block.
type arrangement struct {
	order  []int // of tasks
	turns  []turn
	graphs [slots]cuda.GraphExec
}

// The arrangements that there are of every part. Small kernels are faster in a chain, where each is launched early; in branches large ones can run at
// the same time, and what libraries do.
const (
	inChain = iota
	inBranches
	numArrangements
)

// arrange says which arrangements are to be tried, makes them of all parts, and takes the streams and events that their branches need.
func (e *Exec) arrange() error {
	value, err := switched(BranchesVariable)
	switch {
	case err != nil:
		return err
	case value == "off":
		e.contest = newContest(inChain)
	case value == "on" || e.careful || e.card.Major < hopper || len(e.parts) > 1:
		// Nothing is launched early, or what the host does within a run takes longer than what there is to win.
		e.contest = newContest(inBranches)
	default:
		e.contest = newContest(inChain, inBranches)
	}
	if e.careful {
		return nil // there are no graphs
	}
	for i := range e.parts {
		p := &e.parts[i]
		for _, how := range e.contest.among {
			p.arranged[how] = e.arranged(p.tasks, how)
		}
	}
	return e.makeBranches()
}

// arranged makes an arrangement of tasks.
func (e *Exec) arranged(tasks []task, how int) arrangement {
	order, n := make([]int, len(tasks)), maxBranches
	for i := range order {
		order[i] = i
	}
	if how == inChain {
		order, n = byNeed(e.plan.dependencies(tasks)), 1
	}
	list := make([]task, len(order))
	for i, task := range order {
		list[i] = tasks[task]
	}
	after := e.plan.dependencies(list)
	path := longestPath(after)
	turns := branches(after, n, func(i int) int {
		if branch := list[i].apart(); branch != 0 || !path[i] {
			return branch
		}
		return onPath
	})
	if e.card.Major >= hopper {
		overtake(list, after, turns, e.takesTurns)
	}
	return arrangement{order: order, turns: turns}
}

// longestPath reports which tasks are on the longest path, that of most tasks. Where products fill a card by themselves, the time of a graph is that path's, if its
// tasks do not have to wait for others that they do not need.
func longestPath(after [][]int) []bool {
	path, depth := make([]bool, len(after)), make([]int, len(after))
	last := 0
	for i, list := range after {
		for _, d := range list {
			depth[i] = max(depth[i], depth[d]+1)
		}
		if depth[i] >= depth[last] {
			last = i
		}
	}
	for i := last; len(after) > 0; {
		path[i] = true
		if depth[i] == 0 {
			break
		}
		i = after[i][slices.IndexFunc(after[i], func(d int) bool { return depth[d] == depth[i]-1 })]
	}
	return path
}

// byNeed orders tasks for a chain: first those on which most others follow, one after the other. So those of the longest path come as early as
// they can, and the others as late as they can, where they overtake.
func byNeed(after [][]int) []int {
	order, depth, height := make([]int, len(after)), make([]int, len(after)), make([]int, len(after))
	for i, list := range after {
		order[i] = i
		for _, d := range list {
			depth[i] = max(depth[i], depth[d]+1)
		}
	}
	for i, list := range slices.Backward(after) {
		for _, d := range list {
			height[d] = max(height[d], height[i]+1)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Or(height[b]-height[a], depth[b]-depth[a]) })
	return order
}

// takesTurns reports whether a task is a kernel that waits by itself, if it is launched early, for what came before.
func (e *Exec) takesTurns(t *task) bool {
	switch do := t.do.(type) {
	case launch:
		return e.plan.turns[do.kernel]
	case joint:
		return e.link.TakesTurns(e.collectives(do))
	}
	return false
}

// overtake lets kernels that take turns be launched before the one before them in their branch is done, and those of the plan begin without waiting
// that depend on none of the kernels that may still run then: on the last one that waited for all before it, and on those since. That one lets the
// next be launched when it has waited, and they do at once.
func overtake(tasks []task, after [][]int, turns []turn, takesTurns func(*task) bool) {
	var running [allBranches][]int // by branch
	for i := range tasks {
		t := &turns[i]
		list := &running[t.branch]
		if !takesTurns(&tasks[i]) {
			*list = nil
			continue
		}
		_, own := tasks[i].do.(launch)
		t.early = len(*list) > 0 && len(t.waits) == 0
		t.late = own && t.early && !slices.ContainsFunc(after[i], func(d int) bool { return slices.Contains(*list, d) })
		if !t.late {
			*list = nil
		}
		*list = append(*list, i)
	}
}

// makeBranches takes what the arrangements need: streams, and events by which they wait for each other.
func (e *Exec) makeBranches() error {
	used, awaited := 1, 0
	for i := range e.parts {
		for _, a := range e.parts[i].arranged {
			marks := 0
			for _, t := range a.turns {
				used = max(used, t.branch+1)
				if t.awaited {
					marks++
				}
			}
			awaited = max(awaited, marks)
		}
	}
	e.branches = []cuda.Stream{e.card.Stream}
	for range used - 1 {
		s, err := e.card.StreamCreate()
		if err != nil {
			return err
		}
		e.later(func() error { return e.card.StreamDestroy(s) })
		e.branches = append(e.branches, s)
	}
	if used == 1 {
		return nil
	}
	for range used + awaited {
		m, err := e.card.EventCreate(false)
		if err != nil {
			return err
		}
		e.later(func() error { return e.card.EventDestroy(m) })
		e.marks = append(e.marks, m)
	}
	return nil
}
