package nn

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/lower"
)

// Compiler turns a model, its loss and its optimizer into the graphs that training programs are made of. One goroutine at a
// time may use it.
type Compiler struct {
	Model     Module
	Loss      Loss
	Optimizer Optimizer
	Clip      []Clip
	Layout    *Layout
	// Scaled: the loss is scaled before it is differentiated, for gradients in float16.
	Scaled bool
	// Copied: behind all that lies in the parameter arena there is a copy of the parameters in halves; see [ir.Target].
	Copied bool
	// GradHalf is the half that each rank's gradients are rounded to when they are stored, F32 is none; where parameters are copied they lie as
	// such, each rank's at a place of its own. That is for whole batches.
	GradHalf ir.DType
	// Ranks is how many ranks train together; 0 is one.
	Ranks int
}

// Share is a rank's part of a batch.
type Share struct {
	Input   ir.Shape // of the rank's samples
	IntX    bool     // whether the input is int32 (indices) rather than float32
	Samples int      // in this share
	Total   int      // in the whole batch, over all ranks and micro-batches
	Rank    int      // whose it is
	// Accumulate adds to the gradients that are there instead of replacing them.
	Accumulate bool
}

// TrainGraph is forward and backward for one share: it leaves gradients, their tail, and buffers.
type TrainGraph struct {
	Graph *ir.Graph
	X, Y  *ir.Slot // where the share goes
	// Unused names the parameters that get no gradient.
	Unused []string
}

// Train traces the model and its loss in training mode, differentiates, and lowers the result.
//
// The gradients are those of sum(losses)/Total; Update multiplies by Total/sum(weights) once all ranks' are added up, so that
// a mean over any weights is exact on any number of ranks.
func (c *Compiler) Train(s Share) (*TrainGraph, error) {
	g, x, out, err := c.trace(true, s.Input, s.IntX)
	if err != nil {
		return nil, err
	}
	dtype, shape, err := c.Loss.Target(out.Shape())
	if err != nil {
		return nil, err
	}
	ints := dtype == tensor.Int32
	g.samples = s.Samples
	y := g.Input("target", dtype, shape...)
	term, err := c.Loss.Loss(g, out, y)
	if err != nil {
		return nil, err
	}
	if term.Sum == nil || !term.Sum.IsScalar() {
		return nil, fmt.Errorf("nn: loss %T: the sum of losses must be a scalar node", c.Loss)
	}
	cost := term.Sum
	if !term.Total {
		if cost, err = gorgonia.HadamardProd(cost, gorgonia.NewConstant(float32(1/float64(s.Total)))); err != nil {
			return nil, fmt.Errorf("nn: loss: %w", err)
		}
	}
	t := &TrainGraph{Graph: &ir.Graph{}, X: slotFor(x, s.IntX), Y: slotFor(y, ints)}
	t.Y.Offset = alignSlot(t.X.End())
	inputs, differentiated := map[*gorgonia.Node]*ir.Slot{x: t.X, y: t.Y}, cost
	if c.Scaled {
		scale := g.Input("loss_scale", tensor.Float32)
		inputs[scale] = c.scaleSlot(scaleWord)
		if differentiated, err = gorgonia.HadamardProd(cost, scale); err != nil {
			return nil, fmt.Errorf("nn: loss: %w", err)
		}
	}
	reached := differentiableInputs(cost)
	var wrt gorgonia.Nodes
	var slots []*ir.Slot
	used := map[*Parameter]bool{}
	for _, p := range g.Params() {
		i, ok := c.Layout.params[p.Parameter]
		if !ok {
			return nil, fmt.Errorf("nn: the model uses a parameter of shape %v that is in none of its exported fields: export the field that holds it, or list it in Children", p.Parameter.Shape())
		}
		if reached[p.Node] {
			used[p.Parameter] = true
			wrt, slots = append(wrt, p.Node), append(slots, c.grads(s.Rank, c.Layout.Params[i].Grad))
		}
	}
	if len(wrt) == 0 {
		return nil, errors.New("nn: the loss depends on none of the model's parameters")
	}
	grads, err := gorgonia.Grad(differentiated, wrt...)
	if err != nil {
		return nil, fmt.Errorf("nn: gradient: %w", err)
	}

	// Lower everything in one go, so that forward, backward and statistics share values.
	outs := append(gorgonia.Nodes{cost}, grads...)
	if term.Weight != nil {
		outs = append(outs, term.Weight)
	}
	updates := g.Updates()
	for _, u := range updates {
		outs = append(outs, u.Value)
	}
	vals, err := lower.Lower(t.Graph, outs, c.leaf(t.Graph, g, inputs))
	if err != nil {
		return nil, fmt.Errorf("nn: %w", err)
	}
	store := func(slot *ir.Slot, v *ir.Value) {
		v = t.Graph.Reshape(v, slot.Shape...)
		if s.Accumulate {
			v = t.Graph.Plus(t.Graph.Read(slot), v)
		}
		t.Graph.Store(slot, v)
	}
	store(c.tail(lossTail), vals[0])
	vals = vals[1:]
	for i, slot := range slots {
		v := vals[i]
		if c.GradHalf.Half() {
			v = t.Graph.Map(ir.Rounding(c.GradHalf), v)
		}
		store(slot, v)
	}
	vals = vals[len(slots):]
	weight := t.Graph.Const(float64(s.Samples))
	if term.Weight != nil {
		weight, vals = vals[0], vals[1:]
	}
	store(c.tail(weightTail), weight)
	for i, u := range updates {
		j, ok := c.Layout.buffers[u.Buffer]
		if !ok {
			return nil, fmt.Errorf("nn: the model updates a buffer of shape %v that is in none of its exported fields", u.Buffer.Shape())
		}
		slot := c.Layout.Buffers[j].Slot
		t.Graph.Store(slot, t.Graph.Reshape(vals[i], slot.Shape...))
	}
	for _, p := range c.Layout.Params {
		if used[p.Parameter] {
			continue
		}
		t.Unused = append(t.Unused, p.Name)
		if !s.Accumulate {
			t.Graph.Store(c.grads(s.Rank, p.Grad), t.Graph.Const(0, p.Grad.Shape...))
		}
	}
	return t, t.Graph.Err()
}

// trace runs the model's Forward on an input of that shape.
func (c *Compiler) trace(training bool, input ir.Shape, ints bool) (g *Graph, x, out *gorgonia.Node, err error) {
	g = NewGraph(training)
	if err := g.Bind(c.Model); err != nil {
		return nil, nil, nil, err
	}
	x = g.Input("x", dtypeOf(ints), input...)
	if out, err = c.Model.Forward(g, x); err == nil {
		err = g.Err()
	}
	if err == nil && out == nil {
		err = fmt.Errorf("nn: the model %T has no output: Forward, its own or that of its last module, returns nil", c.Model)
	}
	return g, x, out, err
}

func dtypeOf(ints bool) tensor.Dtype {
	if ints {
		return tensor.Int32
	}
	return tensor.Float32
}

func slotFor(n *gorgonia.Node, ints bool) *ir.Slot {
	s := &ir.Slot{Region: ir.Input, Name: n.Name(), Shape: ir.Of(n.Shape()...)}
	if ints {
		s.DType = ir.I32
	}
	return s
}

// leaf binds the input nodes of a trace to slots.
func (c *Compiler) leaf(g *ir.Graph, trace *Graph, inputs map[*gorgonia.Node]*ir.Slot) func(*gorgonia.Node) (*ir.Value, error) {
	for _, p := range trace.Params() {
		if i, ok := c.Layout.params[p.Parameter]; ok {
			inputs[p.Node] = c.Layout.Params[i].Slot
		}
	}
	for _, b := range trace.Buffers() {
		if i, ok := c.Layout.buffers[b.Buffer]; ok {
			inputs[b.Node] = c.Layout.Buffers[i].Slot
		}
	}
	return func(n *gorgonia.Node) (*ir.Value, error) {
		s, ok := inputs[n]
		if !ok {
			return nil, fmt.Errorf("node %s is an input that is neither the batch nor a parameter or buffer in the model's exported fields: "+
				"for weights of your own keep one of nn.NewParameter in such a field, and take its node from g.Param", n.Name())
		}
		return g.Read(s), nil
	}
}

// differentiableInputs finds the input nodes that cost depends on through differentiable ops.
func differentiableInputs(cost *gorgonia.Node) map[*gorgonia.Node]bool {
	seen := map[*gorgonia.Node]bool{cost: true}
	inputs := map[*gorgonia.Node]bool{}
	for todo := []*gorgonia.Node{cost}; len(todo) > 0; {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if n.Op() == nil {
			inputs[n] = true
			continue
		}
		op, ok := n.Op().(gorgonia.SDOp)
		if !ok {
			continue
		}
		children := n.Graph().From(n.ID())
		diff := op.DiffWRT(children.Len())
		for i := 0; children.Next(); i++ {
			child := children.Node().(*gorgonia.Node)
			if diff[i] && !seen[child] {
				seen[child] = true
				todo = append(todo, child)
			}
		}
	}
	return inputs
}

func (c *Compiler) tail(i int) *ir.Slot {
	return &ir.Slot{Region: ir.Grads, Name: [...]string{"loss_sum", "weight_sum"}[i], Offset: c.TailRange().Offset + i, Shape: ir.Of()}
}

// Zero is Train for a rank that has no samples: gradients and tail of zeros.
func (c *Compiler) Zero(rank int) *ir.Graph {
	g := &ir.Graph{}
	for _, s := range []*ir.Slot{c.GradRange(rank, 0, c.Layout.Elements), c.TailRange()} {
		g.Store(s, g.Const(0, s.Shape...))
	}
	return g
}

// HyperSlots are the step's scalars, in the order of Optimizer.HyperAt's values.
func (c *Compiler) HyperSlots() []*ir.Slot {
	var out []*ir.Slot
	for i, name := range c.Optimizer.Hyper() {
		out = append(out, &ir.Slot{Region: ir.Hyper, Name: name, Offset: i, Shape: ir.Of()})
	}
	return out
}

// StateElements is the size of the optimizer's state for n elements of the parameter arena.
func (c *Compiler) StateElements(n int) int { return len(c.Optimizer.State()) * alignSlot(n) }

// StateSlots are the optimizer's states for elements lo to hi-1 of the parameter arena, one after the other.
func (c *Compiler) StateSlots(lo, hi int) []*ir.Slot {
	var out []*ir.Slot
	for i, name := range c.Optimizer.State() {
		out = append(out, &ir.Slot{Region: ir.State, Name: name, Offset: i * alignSlot(hi-lo), Shape: ir.Of(hi - lo)})
	}
	return out
}

// LossSlot is where Update leaves the loss of the whole batch.
func LossSlot() *ir.Slot { return &ir.Slot{Region: ir.Output, Name: "loss", Shape: ir.Of()} }

// Report leaves the loss of a batch of total samples in its slot, where the tail is the sum over all ranks.
func (c *Compiler) Report(total int) *ir.Graph {
	g := &ir.Graph{}
	g.SetScope("update")
	g.Store(LossSlot(), g.Times(g.Read(c.tail(lossTail)), c.exact(g, total)))
	return g
}

// exact is what a sum over the batch is multiplied by.
func (c *Compiler) exact(g *ir.Graph, total int) *ir.Value {
	return g.Over(g.Const(float64(total)), g.Read(c.tail(weightTail)))
}

// Update is the optimizer's step on elements lo to hi-1 of the arenas, whose gradients (and tail) are the sum over all ranks
// for a batch of total samples. sharded says that every rank has a range of its own, so that norms are summed over ranks.
func (c *Compiler) Update(lo, hi, total int, sharded bool) (*ir.Graph, error) {
	g := c.Report(total)
	sum := func(v *ir.Value) *ir.Value { return v }
	if sharded {
		sum = func(v *ir.Value) *ir.Value { return g.Add(ir.AllReduceSum{All: true}, nil, v) }
	}
	return g, c.update(g, c.StateSlots(lo, hi), lo, hi, total, sum)
}

// InParts reports whether the optimizer's step on some elements needs nothing of the gradients of others.
func (c *Compiler) InParts() bool { return len(c.Clip) == 0 && !c.Scaled }

// UpdatePart is the optimizer's step on elements lo to hi-1, on a rank that has the state of all. The loss is not reported.
func (c *Compiler) UpdatePart(lo, hi, total int) (*ir.Graph, error) {
	state := c.StateSlots(0, c.Layout.Elements)
	for _, s := range state {
		s.Offset, s.Shape = s.Offset+lo, ir.Of(hi-lo)
	}
	g := &ir.Graph{}
	g.SetScope("update")
	return g, c.update(g, state, lo, hi, total, nil)
}

// update adds the optimizer's step on elements lo to hi-1 of the arenas, with the state in those slots.
func (c *Compiler) update(g *ir.Graph, slots []*ir.Slot, lo, hi, total int, sum func(*ir.Value) *ir.Value) error {
	weight, exact := g.Read(c.tail(weightTail)), c.exact(g, total)
	// All samples ignored: no gradient, and the loss is NaN, as 0/0 is.
	scale := g.Select(g.Map(ir.Gt, weight, g.Const(0)), exact, g.Const(0))
	grad := c.summed(g, lo, hi)
	keep := func(old, updated *ir.Value) *ir.Value { return updated }
	if c.Scaled {
		var good *ir.Value
		grad, good = c.unscale(g, grad, sum)
		keep = func(old, updated *ir.Value) *ir.Value { return g.Select(good, updated, old) }
	}
	grad = g.Times(grad, scale)
	for _, clip := range c.Clip {
		grad = clip.Apply(g, grad, sum)
	}
	var state, hyper []*ir.Value
	for _, s := range slots {
		state = append(state, g.Read(s))
	}
	for _, s := range c.HyperSlots() {
		hyper = append(hyper, g.Read(s))
	}
	params := c.Layout.ParamRange(lo, hi)
	old := g.Read(params)
	p, next := c.Optimizer.Update(g, old, grad, state, hyper)
	if len(next) != len(slots) {
		return fmt.Errorf("nn: optimizer %s gave %d states for %d", c.Optimizer.Name(), len(next), len(slots))
	}
	g.Store(params, keep(old, p))
	for i, s := range slots {
		g.Store(s, keep(state[i], next[i]))
	}
	return g.Err()
}

// EvalGraph is forward alone, in evaluation mode.
type EvalGraph struct {
	Graph  *ir.Graph
	X, Out *ir.Slot
}

// Eval traces the model in evaluation mode and lowers it.
func (c *Compiler) Eval(input ir.Shape, ints bool) (*EvalGraph, error) {
	g, x, out, err := c.trace(false, input, ints)
	if err != nil {
		return nil, err
	}
	e := &EvalGraph{Graph: &ir.Graph{}, X: slotFor(x, ints)}
	e.Out = &ir.Slot{Region: ir.Output, Name: "out", Shape: ir.Of(out.Shape()...)}
	vals, err := lower.Lower(e.Graph, gorgonia.Nodes{out}, c.leaf(e.Graph, g, map[*gorgonia.Node]*ir.Slot{x: e.X}))
	if err != nil {
		return nil, fmt.Errorf("nn: %w", err)
	}
	e.Out.DType = vals[0].DType
	e.Graph.Store(e.Out, e.Graph.Reshape(vals[0], e.Out.Shape...))
	return e, e.Graph.Err()
}
