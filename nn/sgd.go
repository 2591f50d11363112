package nn

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
)

// SGDOptimizer is stochastic gradient descent:
//
//	g    = grad + weightDecay p
//	buf  = momentum buf + (1-dampening) g    (buf = g at the first step)
//	p   -= lr buf                            (Nesterov: lr (g + momentum buf))
type SGDOptimizer struct {
	lr, momentum, dampening, weightDecay float64
	nesterov                             bool
}

// SGDOption changes an [SGDOptimizer].
type SGDOption interface{ sgd(*SGDOptimizer) }

// SGD returns stochastic gradient descent.
func SGD(lr float64, opts ...SGDOption) *SGDOptimizer {
	o := &SGDOptimizer{lr: lr}
	for _, opt := range opts {
		opt.sgd(o)
	}
	return o
}

func (m MomentumOption) sgd(o *SGDOptimizer)    { o.momentum = float64(m) }
func (w WeightDecayOption) sgd(o *SGDOptimizer) { o.weightDecay = float64(w) }

// SGDSetting is an option of SGD alone.
type SGDSetting func(*SGDOptimizer)

func (s SGDSetting) sgd(o *SGDOptimizer) { s(o) }

// Nesterov looks ahead by the momentum.
func Nesterov() SGDSetting { return func(o *SGDOptimizer) { o.nesterov = true } }

// Dampening is the share of each gradient that momentum leaves out.
func Dampening(d float64) SGDSetting { return func(o *SGDOptimizer) { o.dampening = d } }

// Name is "sgd".
func (o *SGDOptimizer) Name() string { return "sgd" }

// LR implements [Optimizer].
func (o *SGDOptimizer) LR() float64 { return o.lr }

// Validate implements [Optimizer].
func (o *SGDOptimizer) Validate() error {
	if o.nesterov && (o.momentum <= 0 || o.dampening != 0) {
		return fmt.Errorf("nn: sgd: Nesterov needs a momentum above 0 and no dampening, not momentum %v and dampening %v", o.momentum, o.dampening)
	}
	return validate("sgd", check{"learning rate", o.lr, 0, inf}, check{"momentum", o.momentum, 0, inf},
		check{"dampening", o.dampening, -inf, inf}, check{"weight decay", o.weightDecay, 0, inf})
}

// State is the momentum buffer, if there is momentum.
func (o *SGDOptimizer) State() []string {
	if o.momentum == 0 {
		return nil
	}
	return []string{"momentum_buffer"}
}

// Hyper is the learning rate, and with dampening the share of the gradient, which is 1 at the first step.
func (o *SGDOptimizer) Hyper() []string {
	if o.damps() {
		return []string{"lr", "grad_share"}
	}
	return []string{"lr"}
}

func (o *SGDOptimizer) damps() bool { return o.momentum != 0 && o.dampening != 0 }

// HyperAt implements [Optimizer].
func (o *SGDOptimizer) HyperAt(step int, lr float64) []float64 {
	if !o.damps() {
		return []float64{lr}
	}
	if step == 1 {
		return []float64{lr, 1}
	}
	return []float64{lr, 1 - o.dampening}
}

// Update implements [Optimizer].
func (o *SGDOptimizer) Update(g *ir.Graph, p, grad *ir.Value, state, hyper []*ir.Value) (*ir.Value, []*ir.Value) {
	d := decayed(g, p, grad, o.weightDecay)
	if o.momentum == 0 {
		return descend(g, p, d, hyper[0]), nil
	}
	share := d
	if o.damps() {
		share = g.Times(d, hyper[1])
	}
	buf := g.Plus(g.Scale(state[0], o.momentum), share)
	step := buf
	if o.nesterov {
		step = g.Plus(d, g.Scale(buf, o.momentum))
	}
	return descend(g, p, step, hyper[0]), []*ir.Value{buf}
}
