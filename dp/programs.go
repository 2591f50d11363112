package dp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// compiled is a program with the slots that a step fills and reads.
type compiled struct {
	*ir.Program
	x, y *ir.Slot
}

// stepPlan is how a batch of one form, and of one distribution over the ranks, is trained on: what each rank of this process runs, in order.
type stepPlan struct {
	x      form
	shares []data.Range // of all ranks
	target *ir.Slot     // of one share
	want   ir.Shape     // of the whole batch's target
	mine   ir.Shape     // of the target of this process's first rank
	dimY   int          // along which the target is scattered
	thrift              // parts are as many as there are
	ranks  [][]run
	checks []ir.Check

	programs [][]*ir.Program // of ranks, each once
}

// run is one program of a step on one rank.
type run struct {
	prog   *compiled  // nil: none
	share  data.Range // of the batch's samples
	active int        // ranks that have samples in this part
	every  bool       // all have
	last   bool       // ends with the update
	// shadow are zeros for the collectives of the others' programs among active ranks, which a rank without samples takes part in where
	// ranks behind it have some.
	shadow [][]float32
}

// verify checks a batch or a share of it.
func (p *stepPlan) verify(x, y batch) error {
	for _, c := range p.checks {
		b := y
		if c.Slot.Name != p.target.Name {
			b = x
		}
		if err := verify(c, b); err != nil {
			return err
		}
	}
	return nil
}

// stepPlan finds or makes the plan for batches of that form, of which the ranks have those shares, and loads what it runs.
func (t *DataParallel) stepPlan(ctx context.Context, x form, shares []data.Range) (*stepPlan, error) {
	p := t.lastStep
	if p == nil || p.x.ints != x.ints || !slices.Equal(p.x.shape, x.shape) || !slices.Equal(p.shares, shares) {
		p = t.steps[stepKey(x, shares)]
	}
	known := p
	var err error
	if p == nil {
		if p, err = t.planStep(form{x.ints, slices.Clone(x.shape)}, slices.Clone(shares), thrift{parts: t.cfg.micro}); err != nil {
			return nil, err
		}
	}
	switch {
	case t.cfg.auto && t.procs == nil:
		p, err = t.fitParts(p)
	case t.cfg.auto && known == nil:
		p, err = t.fitTogether(ctx, p)
	default:
		p, err = t.fitStep(p)
	}
	if err != nil {
		return nil, err
	}
	if p != known {
		if known == nil || p.parts != known.parts {
			t.announce(p)
		}
		t.steps[stepKey(x, shares)] = p
	}
	t.lastStep = p
	return p, nil
}

func stepKey(x form, shares []data.Range) string { return fmt.Sprint(x.shape, x.ints, shares) }

// planStep plans a step on a batch of that form.
func (t *DataParallel) planStep(x form, shares []data.Range, th thrift) (*stepPlan, error) {
	p := &stepPlan{x: x, shares: shares, thrift: th, ranks: make([][]run, len(t.team.ranks)), programs: make([][]*ir.Program, len(t.team.ranks))}
	// The largest share decides the number of parts; a rank with fewer samples sits the last ones out.
	parts := data.Chunks(mostSamples(shares), th.parts)
	p.parts = len(parts)
	for part, whole := range parts {
		last := part == len(parts)-1
		pieces := make([]data.Range, len(shares))
		for r, s := range shares {
			pieces[r] = data.Range{Lo: min(s.Lo+whole.Lo, s.Hi), Hi: min(s.Lo+whole.Hi, s.Hi)}
		}
		active, gaps := activeRanks(pieces)
		for i, rank := range t.team.ranks {
			r := rank.index
			step := run{share: pieces[r], active: active, every: active == len(pieces) && !gaps, last: last}
			if pieces[r].Len() == 0 && (gaps || p.target == nil) {
				if err := t.shadow(p, &step, r, pieces, gaps); err != nil {
					return nil, err
				}
			}
			if pieces[r].Len() > 0 || last {
				if err := t.program(p, &step, r, shares[r].Len() > 0 && part > 0); err != nil {
					return nil, err
				}
			}
			if step.prog != nil || len(step.shadow) > 0 {
				p.ranks[i] = append(p.ranks[i], step)
			}
			if step.prog != nil && !slices.Contains(p.programs[i], step.prog.Program) {
				p.programs[i] = append(p.programs[i], step.prog.Program)
			}
		}
	}
	if t.cfg.dim < len(p.target.Shape) {
		p.dimY = t.cfg.dim
	}
	p.want = p.target.Shape.Clone()
	if len(p.want) == 0 {
		return nil, errors.New("dp: the loss takes a scalar target, which can't be scattered")
	}
	p.mine = p.want.Clone()
	p.want[p.dimY], p.mine[p.dimY] = x.shape[t.cfg.dim], shares[t.Rank()].Len()
	return p, nil
}

// activeRanks counts the ranks that have samples. Where there are gaps between them, every rank takes part.
func activeRanks(pieces []data.Range) (n int, gaps bool) {
	last := 0
	for r, piece := range pieces {
		if piece.Len() > 0 {
			n++
			last = r
		}
	}
	if last >= n {
		return len(pieces), true
	}
	return n, false
}

// program gives a rank what it runs in a step, and notes what the plan learns from that.
func (t *DataParallel) program(p *stepPlan, step *run, r int, accumulate bool) error {
	prog, unused, err := t.trainProgram(r, p, step.share.Len(), accumulate, step.every, step.last)
	if err != nil {
		return err
	}
	if len(unused) > 0 && !t.warned && t.Rank() == 0 {
		t.warned = true
		t.cfg.logger.Warn(fmt.Sprintf("%d parameters get no gradient and will not be trained: %s", len(unused), join(unused)))
	}
	step.prog = prog
	p.learn(prog)
	return nil
}

// learn notes what a program takes.
func (p *stepPlan) learn(prog *compiled) {
	if prog.y != nil {
		p.target = prog.y
	}
	for _, c := range prog.Checks {
		if !slices.ContainsFunc(p.checks, func(o ir.Check) bool { return o.Slot.Name == c.Slot.Name && o.CheckIndex == c.CheckIndex }) {
			p.checks = append(p.checks, c)
		}
	}
}

// shadow gives a rank without samples what it must know of the programs of those that have some: the target's form and, where it has to
// take part in their collectives, those.
func (t *DataParallel) shadow(p *stepPlan, step *run, r int, pieces []data.Range, gaps bool) error {
	i := slices.IndexFunc(pieces, func(d data.Range) bool { return d.Len() > 0 })
	prog, _, err := t.trainProgram(r, p, pieces[i].Len(), false, false, false)
	if err != nil {
		return err
	}
	p.learn(prog)
	if !gaps {
		return nil
	}
	for _, s := range prog.Steps {
		if c, ok := s.Op.(ir.Collective); ok && c.ActiveOnly {
			step.shadow = append(step.shadow, make([]float32, s.In[0].Shape.Size()))
		}
	}
	return nil
}

func join(names []string) string {
	const most = 10
	if len(names) <= most {
		return fmt.Sprint(names)
	}
	return fmt.Sprintf("%v and %d more", names[:most], len(names)-most)
}

// trainProgram finds or compiles what rank r runs for n samples of a batch: forward and backward (or zeros, for a rank
// that has no samples), and where last, the exchange of gradients and the update. every says that all ranks have samples: what those that have some
// sum in the middle of it is then for linked cards to do.
func (t *DataParallel) trainProgram(r int, p *stepPlan, n int, accumulate, every, last bool) (*compiled, []string, error) {
	every = every && t.team.ranks[0].link != nil
	lo, hi := t.updateRange(r)
	shape, total := ir.Of(p.x.shape...).Clone(), p.x.shape[t.cfg.dim]
	shape[t.cfg.dim] = n
	first := slices.IndexFunc(p.shares, func(s data.Range) bool { return s.Len() > 0 })
	place := 0
	if t.compiler.Apart() {
		place = r
	}
	key := fmt.Sprint("train", shape, p.x.ints, total, accumulate, every, last, lo, hi, first, p.frugal, place)
	if c, ok := t.programs[key]; ok {
		return c, nil, nil
	}
	c := &compiled{}
	var parts []ir.Part
	var unused []string
	switch {
	case n > 0:
		g, err := t.compiler.Train(nn.Share{Input: shape, IntX: p.x.ints, Samples: n, Total: total, Rank: place, Accumulate: accumulate})
		if err != nil {
			return nil, nil, err
		}
		c.x, c.y, unused = g.X, g.Y, g.Unused
		parts = append(parts, ir.Part{Graph: g.Graph})
	case !accumulate:
		parts = append(parts, ir.Part{Graph: t.compiler.Zero(place)})
	}
	if last {
		more, err := t.exchangeParts(lo, hi, total, first)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, more...)
	}
	var err error
	target := t.deviceTarget()
	target.Everyone = every
	if c.Program, err = t.compile(fmt.Sprintf("train %v", shape), t.sizes(r), target, p.frugal || t.cfg.budget != nil, parts...); err != nil {
		return nil, nil, err
	}
	if t.cfg.budget != nil {
		c.Program = ir.Recompute(c.Program, *t.cfg.budget)
	}
	t.programs[key] = c
	return c, unused, nil
}

// large is how many bytes a program must take to work in for its memory to matter more than that steps can run at the same time: those of
// such programs are large enough to keep a card busy.
const large = 256 << 20

// deviceTarget is what programs are compiled for. All devices of a process are of one kind.
func (t *DataParallel) deviceTarget() ir.Target {
	target := t.cfg.precise.Target(ir.TraitsOf(t.team.ranks[0].dev))
	target.RoundedParams = t.compiler.CopyAt()
	return target
}

// compile makes a program of parts; frugal, or where it is large, one that takes little memory. A large one takes as much beside its values as is
// fastest.
func (t *DataParallel) compile(name string, size [ir.NumRegions]int, target ir.Target, frugal bool, parts ...ir.Part) (*ir.Program, error) {
	p, err := ir.Compile(name, size, target, parts...)
	if err == nil && (frugal || p.Bytes(ir.Work) >= t.cfg.large) {
		target.Frugal, target.Tight = true, frugal
		var q *ir.Program
		if q, err = ir.Compile(name, size, target, parts...); err == nil && q.Bytes(ir.Work) < p.Bytes(ir.Work) {
			p = q
		}
	}
	if err != nil {
		return nil, fmt.Errorf("dp: %w", err)
	}
	return p, nil
}

// exchangeParts are the parts of a step that follow backward, for a rank that updates elements lo to hi-1 of the parameters. The running
// statistics are those of rank first.
func (t *DataParallel) exchangeParts(lo, hi, total, first int) (parts []ir.Part, err error) {
	if t.WorldSize() == 1 {
		g, err := t.compiler.Update(lo, hi, total, false)
		return []ir.Part{{Graph: g}}, err
	}
	list := t.ranges()
	if t.cfg.strategy == Gather && len(list) > 1 && t.compiler.InParts() {
		return t.pipeline(list, hi > lo, total, first)
	}
	return t.inOneGo(list, lo, hi, total, first)
}

// inOneGo are the parts with one update, of all that the rank updates.
func (t *DataParallel) inOneGo(list []data.Range, lo, hi, total, first int) ([]ir.Part, error) {
	l := t.compiler.Layout
	parts := t.reduceParts(list)
	switch {
	case hi > lo:
		g, err := t.compiler.Update(lo, hi, total, t.cfg.strategy == Sharded)
		if err != nil {
			return nil, err
		}
		parts = append(parts, ir.Part{Graph: g})
	case t.procs != nil:
		parts = append(parts, ir.Part{Graph: t.compiler.Report(total)})
	}
	switch t.cfg.strategy {
	case Gather:
		parts = append(parts, on(ir.BroadcastFrom, 0, l.ParamRange(0, t.compiler.SharedElements()), false))
	case Sharded:
		parts = append(parts, on(ir.AllGather, 0, l.ParamRange(0, l.Elements), false))
	}
	parts = append(parts, t.statistics(first)...)
	if t.compiler.Copied && (t.cfg.strategy == Sharded || hi == lo) {
		parts = append(parts, ir.Part{Graph: ir.Touch(l.ParamRange(0, l.Elements))}) // they came from other ranks
	}
	return parts, nil
}

// statistics gives all ranks the running ones that a rank has: the primary card, or the first that has samples.
func (t *DataParallel) statistics(rank int) []ir.Part {
	if t.compiler.Layout.BufferElements == 0 {
		return nil
	}
	return []ir.Part{on(ir.BroadcastFrom, rank, t.compiler.Layout.BufferRange(), t.cfg.strategy != AllReduce)}
}

// touch makes the copy of the parameters that products read, where there is one, on every rank of this process: they have been written by
// something else than a program.
func (t *DataParallel) touch() error {
	if !t.compiler.Copied {
		return nil
	}
	progs := make([]*ir.Program, len(t.team.ranks))
	for i, r := range t.team.ranks {
		var err error
		l := t.compiler.Layout
		if progs[i], err = t.compile("touch", t.sizes(r.index), t.deviceTarget(), false, ir.Part{Graph: ir.Touch(l.ParamRange(0, l.Elements))}); err != nil {
			return err
		}
	}
	return t.team.do(context.Background(), rankFunc(func(r *rank) error {
		p := progs[r.index-t.Rank()]
		if err := r.load([]*ir.Program{p}); err != nil {
			return err
		}
		err := r.execs[p].exec.Run(context.Background(), &ir.Runtime{})
		return errors.Join(err, r.unload(func(o *ir.Program) bool { return o == p }))
	}))
}

// evalProgram finds or compiles forward for one share.
func (t *DataParallel) evalProgram(r int, x form, n int) (*compiled, *ir.Slot, error) {
	shape := ir.Of(x.shape...).Clone()
	shape[t.cfg.dim] = n
	size := t.sizes(r)
	key := fmt.Sprint("eval", shape, x.ints, size)
	if c, ok := t.programs[key]; ok {
		return c, c.y, nil
	}
	e, err := t.compiler.Eval(shape, x.ints)
	if err != nil {
		return nil, nil, err
	}
	p, err := t.compile(fmt.Sprintf("eval %v", shape), size, t.deviceTarget(), false, ir.Part{Graph: e.Graph})
	if err != nil {
		return nil, nil, err
	}
	c := &compiled{p, e.X, e.Out}
	t.programs[key] = c
	return c, e.Out, nil
}

// missing reports whether there is no tensor. An empty batch of a loader has a nil *tensor.Dense.
func missing(x tensor.Tensor) bool {
	d, dense := x.(*tensor.Dense)
	return x == nil || dense && d == nil
}

// input passes x through the door. Integers go in as indices where the model takes them (an embedding), else as numbers.
func (t *DataParallel) input(x tensor.Tensor) (batch, error) {
	switch {
	case missing(x):
		return batch{}, inputError("input", nil, "there is none: pass a tensor whose dimension %d counts the samples", t.cfg.dim)
	case x.Dims() <= t.cfg.dim:
		return batch{}, inputError("input", x, "there is no dimension %d to scatter along", t.cfg.dim)
	case x.Shape()[t.cfg.dim] == 0:
		return batch{}, inputError("input", x, "the batch is empty")
	}
	if !isInt(x.Dtype()) {
		return t.door.x.floatsOf("input", x)
	}
	if t.ints == nil {
		shape := ir.Of(x.Shape()...).Clone()
		_, indices := t.compiler.Eval(shape, true)
		if indices != nil {
			// A batch that can be neither says nothing of the next.
			if _, numbers := t.compiler.Eval(shape, false); numbers != nil {
				return batch{}, inputError("input", x, "as indices: %v; as numbers: %v", indices, numbers)
			}
		}
		takes := indices == nil
		t.ints = &takes
	}
	if *t.ints {
		return t.door.x.intsOf("input", x)
	}
	return t.door.x.floatsOf("input", x)
}
