package exec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

// place is an address: bytes from the start of a region of the program, or of the executable's own memory.
type place struct {
	base  ir.Region
	bytes int
}

// The executable's own memory, after the regions.
const (
	scratch = ir.NumRegions + iota // what one step needs for itself
	control                        // what a run writes for its kernels, and they for it; see control.go
	pinned                         // host memory: the run's own image of that, and what it puts out
	linkage                        // no memory: what collectives write, so that they come in one order
	spare                          // a trial's results that have no place to be written to
	numBases
)

func (p place) plus(bytes int) place { return place{p.base, p.bytes + bytes} }

// even reports whether lanes elements of a size may lie at a place. Regions begin at multiples of 256 bytes.
func (p place) even(size int) bool { return p.bytes%(lanes*size) == 0 }

// span is bytes from there on.
func (p place) span(bytes int, writes bool) span {
	return span{p.base, p.bytes, p.bytes + bytes, writes}
}

func at(o ir.Operand) place { return place{o.Region, o.Offset * o.DType.Size()} }

// Tasks are what goes into the stream.
type (
	// launch runs a kernel on so many blocks.
	launch struct {
		kernel  int
		blocks  int
		planes  int // the grid's second extent; 0 is 1
		threads int // of a block; 0 is the usual
		shared  int // bytes of shared memory that its source does not say
		args    []place
	}
	// fill sets n words.
	fill struct {
		to   place
		n    int
		word uint32
	}
	// zero clears bytes.
	zero struct {
		to    place
		bytes int
	}
	// transfer copies bytes.
	transfer struct {
		to, from place
		bytes    int
	}
	// joint is collectives that the cards carry out by themselves, as one launch; see [Link].
	joint []collective
)

// collective is a collective on n elements.
type collective struct {
	op ir.Collective
	on place
	n  int
}

// task is one of the above, or a library's call; step is the program's step that it belongs to.
type task struct {
	step int
	do   any
	more []int  // further steps, whose work it does too
	on   []span // what it reads and writes, where that is not all that its steps do
	// beside says that the others do not wait for it, until the end.
	beside bool
	masks  bool // it does no more than apply the mask of its step's product
	// sum is all that the task does, where that is to add up vectors; see sums.go.
	sum *ir.Step
}

// steps are all steps whose work a task does.
func (t task) steps() []int { return append([]int{t.step}, t.more...) }

// apart is the branch that is for such tasks, or 0.
func (t task) apart() int {
	if _, ok := t.do.(joint); ok {
		return together
	}
	if t.beside {
		return beside
	}
	return 0
}

// end is what happens at the end of a segment, on the host.
type end uint8

const (
	goOn     end = iota
	verify       // indices found out of range end the run
	exchange     // the step is a collective that the host carries out
)

// segment is tasks that the stream carries out without the host.
type segment struct {
	tasks  []task
	end    end
	step   int  // where it ends: of the collective, or the step that must not run if an index is out of range
	linked bool // it has collectives that the cards carry out
}

// guard is a word of the control block for a step that looks at indices.
type guard struct {
	step  int
	check ir.CheckIndex
}

// plan is a program made into kernels and tasks, for any card and any memory.
type plan struct {
	program *ir.Program
	module
	segments []segment
	guards   []guard
	watched  bool // some of them look at indices that no check has seen
	random   bool
	scratch  int    // bytes
	own      []span // of the scratch, by step
	staging  int    // elements of the largest collective
	commit   int    // the step after which the context no longer stops a run
	linked   bool   // collectives among all ranks are the cards' own
}

// planner makes a plan, step by step.
type planner struct {
	*plan
	libraries
	step     int
	s        *ir.Step
	tasks    []task
	used     int  // of the scratch
	fresh    bool // this step has none of it yet
	beside   bool // what is planned is to be done beside other tasks
	unproven bool // an index that no check has seen has been looked at since the last verification
}

var errOp = errors.New("no such step on a card")

// newPlan plans p. Products and convolutions go to the libraries, as far as those take them; where the card is linked to those of all
// other ranks, collectives go there.
func newPlan(p *ir.Program, libs libraries, linked bool) (*plan, error) {
	b := &planner{plan: &plan{program: p, commit: len(p.Steps), own: make([]span, len(p.Steps)), linked: linked}, libraries: libs}
	for i := range p.Steps {
		b.step, b.s, b.fresh = i, &p.Steps[i], true
		if commits(b.s) {
			b.commit = min(b.commit, i)
		}
		if keeps(b.s) && b.unproven {
			b.cut(verify)
		}
		if err := b.build(b.s); err != nil {
			return nil, stepError(p, i, err)
		}
	}
	b.step = len(p.Steps)
	b.cut(goOn)
	b.frame()
	return b.plan, nil
}

// commits reports whether a context that ends after the step's start no longer stops the run; see [ir.Executable].
func commits(s *ir.Step) bool {
	if c, ok := s.Op.(ir.Collective); ok && !c.ActiveOnly {
		return true
	}
	return slices.ContainsFunc(s.Out, func(o ir.Operand) bool { return o.Region == ir.Params || o.Region == ir.State })
}

// keeps reports whether a step must not run in a step that fails for an index: it writes what outlives the step, or others join in.
func keeps(s *ir.Step) bool {
	if _, ok := s.Op.(ir.Collective); ok {
		return true
	}
	return slices.ContainsFunc(s.Out, func(o ir.Operand) bool {
		return o.Region == ir.Params || o.Region == ir.State || o.Region == ir.Buffers
	})
}

// cut ends a segment before the current step.
func (b *planner) cut(e end) {
	linked := slices.ContainsFunc(b.tasks, func(t task) bool { _, ok := t.do.(joint); return ok })
	b.segments = append(b.segments, segment{b.tasks, e, b.step, linked})
	b.tasks, b.used = nil, 0
	if e == verify {
		b.unproven = false
	}
}

// framed reports whether runs write the control block.
func (p *plan) framed() bool { return p.random || p.watched }

// reported is how many bytes of what a run puts out are read with it: all, if they are few.
func (p *plan) reported() int {
	if n := int(p.program.Bytes(ir.Output)); n <= ir.LateBytes {
		return n
	}
	return 0
}

// frame adds the transfers of the control block, and of what a run puts out.
func (b *planner) frame() {
	all, outputs := b.controlBytes(), b.reported()
	if outputs > 0 {
		last := &b.segments[len(b.segments)-1]
		last.tasks = append(last.tasks, b.carry(last.step-1, place{pinned, all}, place{base: ir.Output}, outputs))
	}
	if !b.framed() {
		return
	}
	first := &b.segments[0]
	first.tasks = append([]task{b.carry(0, place{base: control}, place{base: pinned}, all)}, first.tasks...)
	if !b.watched {
		return
	}
	for i := range b.segments {
		if s := &b.segments[i]; s.end == verify || i == len(b.segments)-1 {
			s.tasks = append(s.tasks, b.carry(s.step-1, place{pinned, runtimeBytes}, place{control, runtimeBytes}, all-runtimeBytes))
		}
	}
}

// carry is a kernel that copies few bytes to or from pinned memory: within a graph, a transfer takes a card five times as long.
func (b *planner) carry(step int, to, from place, bytes int) task {
	on := span{from.base, from.bytes, from.bytes + bytes, false}
	if from.base == pinned {
		on = span{to.base, to.bytes, to.bytes + bytes, true}
	}
	k := b.kernel("carry", call(fmt.Sprintf("carry<%d>", bytes/wordBytes), "const u32 *from", "u32 *to"))
	return task{step: max(step, 0), do: launch{kernel: k, blocks: 1, args: []place{from, to}}, on: []span{on}}
}

func (b *planner) add(do any) { b.tasks = append(b.tasks, task{step: b.step, do: do}) }

// launch adds a kernel's launch.
func (b *planner) launch(kernel, blocks int, args ...place) {
	b.add(launch{kernel: kernel, blocks: blocks, args: args})
}

// apart is how many bytes of scratch the steps of a segment have for themselves, at most, so that they may run at the same time. When
// those are used up, later steps share them with earlier ones.
const apart = 64 << 20

// apart is what there is of that, no more than a step has room for.
func (p *plan) apart() int {
	if room := p.room(); room > 0 {
		return min(apart, room)
	}
	return apart
}

// room is the most scratch that a step takes where there is a way with no more, in a program for which memory is tight: a part of what
// its values take. 0: as much as is fastest.
func (p *plan) room() int {
	if p.program == nil || !p.program.Target.Tight {
		return 0
	}
	return int(p.program.Bytes(ir.Work) / 4)
}

// fits reports whether a step has room for so many bytes.
func (p *plan) fits(bytes int) bool { return p.room() == 0 || bytes <= p.room() }

// temporary takes n words of scratch for the current step, on a 256-byte boundary.
func (b *planner) temporary(n int) place {
	bytes := (wordBytes*n + boundary - 1) / boundary * boundary
	if b.fresh {
		b.fresh = false
		if b.used+bytes > b.apart() {
			b.used = 0
		}
		b.own[b.step] = span{scratch, b.used, b.used, true}
	}
	p := place{scratch, b.used}
	b.used += bytes
	b.own[b.step].to = b.used
	b.scratch = max(b.scratch, b.used)
	return p
}

// guard gives the word in which the current step notes an index out of range. Where the program's caller has verified the indices
// before the run, or an earlier step has, that is only a guard against reaching outside of memory.
func (b *planner) guard(indices ir.Operand, check ir.CheckIndex) place {
	b.guards = append(b.guards, guard{b.step, check})
	if !b.proven(indices, check) {
		b.unproven, b.watched = true, true
	}
	return guardPlace(len(b.guards) - 1)
}

// proven reports whether indices have passed a check that is at least as strict.
func (b *planner) proven(o ir.Operand, check ir.CheckIndex) bool {
	stricter := func(c ir.CheckIndex) bool {
		return c.Bound <= check.Bound && (c.Ignore == check.Ignore || c.Ignore >= 0 && c.Ignore < check.Bound)
	}
	for _, c := range b.program.Checks {
		s := c.Slot
		if o.Region == s.Region && o.Offset >= s.Offset && o.Offset+reach(o.Shape, o.Strides) <= s.End() && stricter(c.CheckIndex) {
			return true
		}
	}
	for i := b.step - 1; i >= 0; i-- {
		s := &b.program.Steps[i]
		if len(s.Out) == 0 || s.Out[0].Region != o.Region || s.Out[0].Offset != o.Offset {
			continue
		}
		c, ok := s.Op.(ir.CheckIndex)
		return ok && s.Out[0].Shape.Size() == o.Shape.Size() && stricter(c)
	}
	return false
}

func (b *planner) build(s *ir.Step) error {
	switch op := s.Op.(type) {
	case ir.Fused:
		return b.inParts(s)
	case ir.Reduce:
		return b.reduce(s, op)
	case ir.MatMul:
		return b.inBestWay(s)
	case ir.Conv2d, ir.Conv2dGradX, ir.Conv2dGradW:
		return b.inBestWay(s)
	case ir.Pool2d:
		return b.pool(s, op)
	case ir.PoolPlaces:
		return b.maxPool(op.Pool, s.In[0], nil, &s.Out[0])
	case ir.Pool2dGrad:
		return b.poolGrad(s, op)
	case ir.Softmax:
		return b.softmax(s, op)
	case ir.SoftmaxGrad:
		return b.softmaxGrad(s, op)
	case ir.CrossEntropy:
		return b.crossEntropy(s, op)
	case ir.CrossEntropyGrad:
		return b.crossEntropyGrad(s, op)
	case ir.ArgMax:
		return b.argMax(s, op)
	case ir.Gather:
		return b.gather(s)
	case ir.ScatterAdd:
		return b.scatterAdd(s, op)
	case ir.Concat:
		return b.concat(s, op)
	case ir.Unslice:
		return b.unslice(s, op)
	case ir.Copy:
		return b.copy(s)
	case ir.CheckIndex:
		return b.checkIndex(s, op)
	case ir.Collective:
		return b.collective(s, op)
	}
	return errOp
}

// collective is a task where the cards carry it out. Otherwise it ends a segment: the host does.
func (b *planner) collective(s *ir.Step, op ir.Collective) error {
	in, out := s.In[0], s.Out[0]
	if err := contiguous(in, out); err != nil {
		return err
	}
	n := out.Shape.Size()
	if at(in) != at(out) && n > 0 {
		b.add(transfer{at(out), at(in), n * out.DType.Size()})
	}
	if b.linked && !op.ActiveOnly {
		if n > 0 {
			b.joined(collective{op, at(out), n})
		}
		return nil
	}
	b.staging = max(b.staging, n)
	b.cut(exchange)
	return nil
}

// joined adds a collective, to the task before it if that is what it goes with.
func (b *planner) joined(c collective) {
	if last := len(b.tasks) - 1; c.op.Joined && last >= 0 {
		if list, ok := b.tasks[last].do.(joint); ok {
			b.tasks[last].do = append(list, c)
			b.tasks[last].more = append(b.tasks[last].more, b.step)
			return
		}
	}
	b.add(joint{c})
}

// contiguous says which of the operands is not.
func contiguous(list ...ir.Operand) error {
	for _, o := range list {
		if !o.Contiguous() {
			return fmt.Errorf("operand %v is not contiguous", o)
		}
	}
	return nil
}

// stepError says where in a program something failed.
func stepError(p *ir.Program, step int, err error) error {
	if step >= len(p.Steps) {
		return fmt.Errorf("at the end: %w", err)
	}
	s := &p.Steps[step]
	name := s.Name
	if name != "" {
		name += " "
	}
	return fmt.Errorf("step %d %s(%s): %w", step, name, opName(s.Op), err)
}

func opName(op ir.Op) string { return strings.TrimPrefix(fmt.Sprintf("%T", op), "ir.") }
