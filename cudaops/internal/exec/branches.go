package exec

import (
	"slices"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// maxBranches is how many tasks of a graph may run at the same time. More would find no room on the card, mostly.
const maxBranches = 5

// span is bytes of a region, from the first that a task reads or writes to behind the last. What lies between them may be another
// task's: then the two are kept apart without need.
type span struct {
	base     ir.Region
	from, to int
	writes   bool
}

// extent is where an operand lies.
func extent(o ir.Operand) span {
	from := at(o).bytes
	return span{base: o.Region, from: from, to: from + reach(o.Shape, o.Strides)*o.DType.Size()}
}

// conflict reports whether the order of two tasks matters that have these spans.
func (s span) conflict(o span) bool {
	return (s.writes || o.writes) && s.overlaps(o)
}

func (s span) overlaps(o span) bool { return s.base == o.base && s.from < o.to && o.from < s.to }

// operands are where those of a step lie that have elements.
func operands(s *ir.Step) (list []span) {
	for i, o := range slices.Concat(s.In, s.Out) {
		if o.Shape.Size() > 0 {
			on := extent(o)
			on.writes = i >= len(s.In)
			list = append(list, on)
		}
	}
	return list
}

// only plans tasks that read and write less than what their step does: what lies at some places, and the scratch that they take.
func (b *planner) only(on []span, plan func() error) error {
	first, from, fresh := len(b.tasks), b.used, b.fresh
	if err := plan(); err != nil {
		return err
	}
	if fresh && !b.fresh {
		from = b.own[b.step].from
	}
	if from < b.used {
		on = append(on, span{scratch, from, b.used, true})
	}
	for i := range b.tasks[first:] {
		b.tasks[first+i].on = on
	}
	return nil
}

// spans are what a task reads and writes: what its steps do, and words of the control block.
func (p *plan) spans(t task) (list []span) {
	if t.on != nil {
		return t.on
	}
	switch do := t.do.(type) {
	case joint:
		list = append(list, span{linkage, 0, 1, true})
	case launch:
		for _, a := range do.args {
			switch {
			case a.base != control:
			case a.bytes < runtimeBytes:
				list = append(list, span{control, 0, runtimeBytes, false})
			default:
				list = append(list, span{control, a.bytes, a.bytes + guardBytes, true})
			}
		}
	}
	for _, step := range t.steps() {
		list = append(list, operands(&p.program.Steps[step])...)
		if own := p.own[step]; own.from < own.to {
			list = append(list, own)
		}
	}
	return list
}

// dependencies lists for every task of a segment earlier ones that it must come after, so that the order of any two tasks that conflict
// follows, by way of others perhaps.
func (p *plan) dependencies(tasks []task) [][]int {
	type use struct {
		span
		task int
	}
	var uses [numBases][]use
	after := make([][]int, len(tasks))
	for i, t := range tasks {
		spans := p.spans(t)
		for _, s := range spans {
			for _, u := range uses[s.base] {
				if u.conflict(s) {
					after[i] = append(after[i], u.task)
				}
			}
		}
		slices.Sort(after[i])
		after[i] = slices.Compact(after[i])
		for _, s := range spans {
			if s.writes {
				// What conflicts with a use of this memory by then conflicts with this one too.
				uses[s.base] = slices.DeleteFunc(uses[s.base], func(u use) bool { return u.from >= s.from && u.to <= s.to })
			}
		}
		for _, s := range spans {
			uses[s.base] = append(uses[s.base], use{s, i})
		}
	}
	return after
}

// turn is when a task of a segment comes: after the one before it in its branch, and after others.
type turn struct {
	branch  int
	waits   []int // for tasks of other branches
	awaited bool  // by a task of another branch
	early   bool  // a kernel that may be launched before the one before it in its branch is done
	late    bool  // and needs nothing of those that may still run then
}

// Branches apart from the others: for what cards do together, which waits for other cards as well, and for what is done beside the rest.
// Nothing else comes behind it in its branch.
const (
	together = maxBranches + iota
	beside
	allBranches
)

// clock is how many tasks of each branch have been done at some moment, at least.
type clock [allBranches]int

// onPath stands for the first branch, which then is for the longest path alone, so that nothing comes between two of its tasks.
const onPath = -1

// branches gives tasks their turns in at most n branches, but on the path or in a branch apart where apart says so; else that is 0. after are the dependencies; waits are only
// those of them that do not follow from others.
func branches(after [][]int, n int, apart func(task int) int) []turn {
	turns, clocks := make([]turn, len(after)), make([]clock, len(after))
	var ends [allBranches][]int // the tasks of each branch
	number := func(task int) int { return clocks[task][turns[task].branch] }
	from := 0 // the first branch that is there for all
	if n > 1 {
		for i := range turns {
			turns[i].branch = apart(i)
			if turns[i].branch == onPath {
				from = 1
			}
		}
	}
	// wait leaves out what has been done at a moment, and moves that on.
	wait := func(c *clock, tasks []int) (waits []int) {
		for _, d := range slices.Backward(tasks) { // a later task may come after an earlier one
			if c[turns[d].branch] >= number(d) {
				continue
			}
			waits = append(waits, d)
			for b := range c {
				c[b] = max(c[b], clocks[d][b])
			}
		}
		slices.Reverse(waits)
		return waits
	}
	for i := range after {
		var known clock
		needed := wait(&known, after[i])
		switch turns[i].branch {
		case onPath:
			turns[i].branch = 0
		case 0:
			turns[i].branch = choose(from, n, ends[:], known)
		}
		best := turns[i].branch
		t, c := &turns[i], &clocks[i]
		if tasks := ends[best]; len(tasks) > 0 {
			*c = clocks[tasks[len(tasks)-1]]
		}
		t.waits = wait(c, needed)
		for _, d := range t.waits {
			turns[d].awaited = true
		}
		ends[best] = append(ends[best], i)
		c[best] = len(ends[best])
	}
	return turns
}

// choose finds the best of the branches from one to behind another for a task, given the tasks of each and what is known to be done: one whose last task is needed anyway,
// a later one rather than an earlier one; then, one that has not begun; then, the one whose last task came first.
func choose(from, to int, ends [][]int, known clock) int {
	best, bestEnd, free := from, 0, false
	for b := from; b < to; b++ {
		end := -1
		if tasks := ends[b]; len(tasks) > 0 {
			end = tasks[len(tasks)-1]
		}
		isFree := end < 0 || known[b] >= len(ends[b])
		switch {
		case isFree && (!free || end > bestEnd):
			best, bestEnd, free = b, end, true
		case !free && (b == from || end < bestEnd):
			best, bestEnd = b, end
		}
	}
	return best
}

// branch puts a part's work into the branches' streams, in an arrangement; the first stream is being captured. The others join the capture where
// they wait for it to begin, and at the end it waits for them.
func (e *Exec) branch(p *part, a *arrangement) error {
	defer func() { e.stream, e.turn = e.card.Stream, turn{} }()
	marks := e.marks
	mark := func() (m cuda.Event, err error) {
		m, marks = marks[0], marks[1:]
		return m, e.card.EventRecord(m, e.stream)
	}
	begun := make([]bool, len(e.branches))
	begun[0] = true
	var begin cuda.Event
	if len(e.branches) > 1 {
		var err error
		if begin, err = mark(); err != nil {
			return err
		}
	}
	done := make(map[int]cuda.Event)
	for i, task := range a.order {
		w, t := &p.work[task], &a.turns[i]
		e.stream = e.branches[t.branch]
		if !begun[t.branch] {
			begun[t.branch] = true
			if err := e.card.StreamWaitEvent(e.stream, begin); err != nil {
				return err
			}
		}
		for _, d := range t.waits {
			if err := e.card.StreamWaitEvent(e.stream, done[d]); err != nil {
				return err
			}
		}
		e.turn = *t
		if err := w.put(); err != nil {
			return stepError(e.plan.program, w.step, err)
		}
		if t.awaited {
			var err error
			if done[i], err = mark(); err != nil {
				return err
			}
		}
	}
	for b, s := range e.branches[1:] {
		if !begun[b+1] {
			continue
		}
		e.stream = s
		end, err := mark()
		if err != nil {
			return err
		}
		if err := e.card.StreamWaitEvent(e.card.Stream, end); err != nil {
			return err
		}
	}
	return nil
}
