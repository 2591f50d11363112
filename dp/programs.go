package dp

import (
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

// stepPlan is how a batch of one shape is trained on: what each rank runs, in order.
type stepPlan struct {
	shape   []int    // of x
	ints    bool     // of x
	target  *ir.Slot // of one share
	want    ir.Shape // of the whole batch's target
	dimY    int      // along which the target is scattered
	samples int
	ranks   [][]run
	checks  []ir.Check
}

// run is one program of a step on one rank.
type run struct {
	prog   *compiled
	share  data.Range // of the batch's samples
	active int        // ranks that have samples in this part
	last   bool       // ends with the update
}

// stepPlan finds or makes the plan for inputs of that shape.
func (t *DataParallel) stepPlan(x batch) (*stepPlan, error) {
	if p := t.lastStep; p != nil && p.ints == x.ints && slices.Equal(p.shape, x.shape) {
		return p, nil
	}
	key := fmt.Sprint(x.shape, x.ints)
	p, ok := t.steps[key]
	if !ok {
		var err error
		if p, err = t.planStep(x); err != nil {
			return nil, err
		}
		t.steps[key] = p
	}
	t.lastStep = p
	return p, nil
}

func (t *DataParallel) planStep(x batch) (*stepPlan, error) {
	world := t.WorldSize()
	p := &stepPlan{shape: slices.Clone(x.shape), ints: x.ints, samples: x.shape[t.cfg.dim], ranks: make([][]run, world)}
	shares := data.Chunks(p.samples, world)
	// The largest share decides the number of parts; a rank with fewer samples sits the last ones out.
	parts := data.Chunks(shares[0].Len(), t.cfg.micro)
	for part, whole := range parts {
		last := part == len(parts)-1
		active := 0
		pieces := make([]data.Range, world)
		for r, s := range shares {
			pieces[r] = data.Range{Lo: min(s.Lo+whole.Lo, s.Hi), Hi: min(s.Lo+whole.Hi, s.Hi)}
			if pieces[r].Len() > 0 {
				active++
			}
		}
		for r := range world {
			if r >= active && !last {
				continue
			}
			prog, unused, err := t.trainProgram(r, x, pieces[r].Len(), p.samples, r < len(shares) && part > 0, last)
			if err != nil {
				return nil, err
			}
			if len(unused) > 0 && !t.warned {
				t.warned = true
				t.cfg.logger.Warn(fmt.Sprintf("%d parameters get no gradient and will not be trained: %s", len(unused), join(unused)))
			}
			if prog.y != nil {
				p.target = prog.y
			}
			for _, c := range prog.Checks {
				if !slices.ContainsFunc(p.checks, func(o ir.Check) bool { return o.Slot.Name == c.Slot.Name && o.CheckIndex == c.CheckIndex }) {
					p.checks = append(p.checks, c)
				}
			}
			p.ranks[r] = append(p.ranks[r], run{prog, pieces[r], active, last})
		}
	}
	if t.cfg.dim < len(p.target.Shape) {
		p.dimY = t.cfg.dim
	}
	p.want = p.target.Shape.Clone()
	if len(p.want) == 0 {
		return nil, errors.New("dp: the loss takes a scalar target, which can't be scattered")
	}
	p.want[p.dimY] = p.samples
	return p, nil
}

func join(names []string) string {
	const most = 10
	if len(names) <= most {
		return fmt.Sprint(names)
	}
	return fmt.Sprintf("%v and %d more", names[:most], len(names)-most)
}

// trainProgram finds or compiles what rank r runs for n samples of a batch of total: forward and backward (or zeros, for a rank
// that has no samples), and where last, the exchange of gradients and the update.
func (t *DataParallel) trainProgram(r int, x batch, n, total int, accumulate, last bool) (*compiled, []string, error) {
	lo, hi := t.updateRange(r)
	shape := ir.Of(x.shape...).Clone()
	shape[t.cfg.dim] = n
	key := fmt.Sprint("train", shape, x.ints, total, accumulate, last, lo, hi)
	if c, ok := t.programs[key]; ok {
		return c, nil, nil
	}
	c := &compiled{}
	var parts []ir.Part
	var unused []string
	switch {
	case n > 0:
		g, err := t.compiler.Train(nn.Share{Input: shape, IntX: x.ints, Samples: n, Total: total, Accumulate: accumulate})
		if err != nil {
			return nil, nil, err
		}
		c.x, c.y, unused = g.X, g.Y, g.Unused
		parts = append(parts, ir.Part{Graph: g.Graph})
	case !accumulate:
		parts = append(parts, ir.Part{Graph: t.compiler.Zero()})
	}
	if last {
		more, err := t.exchange(lo, hi, total)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, more...)
	}
	var err error
	if c.Program, err = ir.Compile(fmt.Sprintf("train %v", shape), t.sizes(r), parts...); err != nil {
		return nil, nil, fmt.Errorf("dp: %w", err)
	}
	t.programs[key] = c
	return c, unused, nil
}

// exchange is the part of a step that follows backward, for a rank that updates elements lo to hi-1 of the parameters.
func (t *DataParallel) exchange(lo, hi, total int) ([]ir.Part, error) {
	l := t.compiler.Layout
	n := l.Elements
	on := func(kind ir.CollectiveKind, s *ir.Slot) ir.Part {
		return ir.Part{Collective: &ir.Collective{Kind: kind}, On: s}
	}
	update := func(sharded bool) (ir.Part, error) {
		g, err := t.compiler.Update(lo, hi, total, sharded)
		return ir.Part{Graph: g}, err
	}
	var parts []ir.Part
	add := func(p ir.Part, err error) error {
		parts = append(parts, p)
		return err
	}
	var err error
	switch {
	case t.WorldSize() == 1:
		err = add(update(false))
	case t.cfg.strategy == Gather:
		parts = append(parts, on(ir.ReduceTo, l.GradRange(0, n+nn.GradTail)))
		if hi > lo {
			err = add(update(false))
		}
		parts = append(parts, on(ir.BroadcastFrom, l.ParamRange(0, n)))
	case t.cfg.strategy == AllReduce:
		parts = append(parts, on(ir.AllReduce, l.GradRange(0, n+nn.GradTail)))
		err = add(update(false))
	case t.cfg.strategy == Sharded:
		parts = append(parts, on(ir.ReduceScatter, l.GradRange(0, n)), on(ir.AllReduce, l.GradRange(n, n+nn.GradTail)))
		err = add(update(true))
		parts = append(parts, on(ir.AllGather, l.ParamRange(0, n)))
	}
	if err != nil {
		return nil, err
	}
	// Running statistics follow the primary card.
	if l.BufferElements > 0 && t.WorldSize() > 1 {
		parts = append(parts, on(ir.BroadcastFrom, l.BufferRange()))
	}
	return parts, nil
}

// evalProgram finds or compiles forward for one share.
func (t *DataParallel) evalProgram(r int, x batch, n int) (*compiled, *ir.Slot, error) {
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
	p, err := ir.Compile(fmt.Sprintf("eval %v", shape), size, ir.Part{Graph: e.Graph})
	if err != nil {
		return nil, nil, fmt.Errorf("dp: %w", err)
	}
	c := &compiled{p, e.X, e.Out}
	t.programs[key] = c
	return c, e.Out, nil
}

// input passes x through the door. Integers go in as indices where the model takes them (an embedding), else as numbers.
func (t *DataParallel) input(x tensor.Tensor) (batch, error) {
	switch {
	case x == nil:
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
		_, err := t.compiler.Eval(shape, true)
		takes := err == nil
		t.ints = &takes
	}
	if *t.ints {
		return t.door.x.intsOf("input", x)
	}
	return t.door.x.floatsOf("input", x)
}
