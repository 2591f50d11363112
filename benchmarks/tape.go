package main

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/nn"
)

// gorgoniaPeer is Gorgonia's tape machine with its plain SGD solver: what one has without us.
const gorgoniaPeer = "gorgonia"

// tape trains a model on Gorgonia's tape machine.
type tape struct {
	vm     gorgonia.VM
	solver gorgonia.Solver
	params []gorgonia.ValueGrad
	cost   gorgonia.Value
}

// newTape traces m for a batch and binds the batch to it. The parameters become copies of m's, which must have values.
func newTape(m nn.Module, x, oneHot *tensor.Dense, lr float64) (*tape, error) {
	g := nn.NewGraph(true)
	if err := g.Bind(m); err != nil {
		return nil, err
	}
	in := g.Input("x", tensor.Float32, x.Shape()...)
	target := g.Input("y", tensor.Float32, oneHot.Shape()...)
	out, err := m.Forward(g, in)
	if err != nil {
		return nil, err
	}
	loss, err := nativeLoss(g, out, target)
	if err != nil {
		return nil, err
	}
	t := new(tape)
	gorgonia.Read(loss, &t.cost)
	nodes := make(gorgonia.Nodes, len(g.Params()))
	for i, p := range g.Params() {
		nodes[i] = p.Node
		value := tensor.New(tensor.WithShape(p.Parameter.Shape()...), tensor.WithBacking(append([]float32(nil), p.Parameter.Data()...)))
		if err := gorgonia.Let(p.Node, value); err != nil {
			return nil, err
		}
	}
	if err := gorgonia.Let(in, x); err != nil {
		return nil, err
	}
	if err := gorgonia.Let(target, oneHot); err != nil {
		return nil, err
	}
	if _, err := gorgonia.Grad(loss, nodes...); err != nil {
		return nil, err
	}
	t.vm = gorgonia.NewTapeMachine(g.Expr(), gorgonia.BindDualValues(nodes...))
	t.solver = gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(lr))
	t.params = gorgonia.NodesToValueGrads(nodes)
	return t, g.Err()
}

// step trains once and returns the loss before the update.
func (t *tape) step() (float64, error) {
	t.vm.Reset()
	if err := t.vm.RunAll(); err != nil {
		return 0, fmt.Errorf("gorgonia's tape machine: %w", err)
	}
	loss, ok := t.cost.Data().(float32)
	if !ok {
		return 0, fmt.Errorf("gorgonia's tape machine: a loss of type %T", t.cost.Data())
	}
	return float64(loss), t.solver.Step(t.params)
}

func (t *tape) close() error { return t.vm.Close() }
