package nn

import "github.com/tandem-train/tandem/internal/ir"

// RMSpropOptimizer divides gradients by a running root of their mean square:
//
//	g    = grad + weightDecay p
//	v   += (1-alpha) (g² - v)
//	avg += (1-alpha) (g - avg)             (centered)
//	d    = sqrt(v) + eps                   (centered: sqrt(v - avg²) + eps)
//	buf  = momentum buf + g/d
//	p   -= lr buf
type RMSpropOptimizer struct {
	lr, alpha, eps, weightDecay, momentum float64
	centered                              bool
}

// RMSpropOption changes an [RMSpropOptimizer].
type RMSpropOption interface{ rmsprop(*RMSpropOptimizer) }

// RMSprop returns RMSprop with alpha 0.99 and eps 1e-8.
func RMSprop(lr float64, opts ...RMSpropOption) *RMSpropOptimizer {
	o := &RMSpropOptimizer{lr: lr, alpha: 0.99, eps: 1e-8}
	for _, opt := range opts {
		opt.rmsprop(o)
	}
	return o
}

func (m MomentumOption) rmsprop(o *RMSpropOptimizer)    { o.momentum = float64(m) }
func (w WeightDecayOption) rmsprop(o *RMSpropOptimizer) { o.weightDecay = float64(w) }
func (e EpsOption) rmsprop(o *RMSpropOptimizer)         { o.eps = float64(e) }

// RMSpropSetting is an option of RMSprop alone.
type RMSpropSetting func(*RMSpropOptimizer)

func (s RMSpropSetting) rmsprop(o *RMSpropOptimizer) { s(o) }

// Alpha is the share of the old that the running mean square keeps.
func Alpha(a float64) RMSpropSetting { return func(o *RMSpropOptimizer) { o.alpha = a } }

// Centered divides by the root of the gradient's variance, not of its mean square.
func Centered() RMSpropSetting { return func(o *RMSpropOptimizer) { o.centered = true } }

// Name is "rmsprop".
func (o *RMSpropOptimizer) Name() string { return "rmsprop" }

// LR implements [Optimizer].
func (o *RMSpropOptimizer) LR() float64 { return o.lr }

// Validate implements [Optimizer].
func (o *RMSpropOptimizer) Validate() error {
	return validate("rmsprop", check{"learning rate", o.lr, 0, inf}, check{"alpha", o.alpha, 0, inf}, check{"eps", o.eps, 0, inf},
		check{"momentum", o.momentum, 0, inf}, check{"weight decay", o.weightDecay, 0, inf})
}

// State is the mean square, with momentum the buffer, and centered the mean.
func (o *RMSpropOptimizer) State() []string {
	s := []string{"square_avg"}
	if o.momentum != 0 {
		s = append(s, "momentum_buffer")
	}
	if o.centered {
		s = append(s, "grad_avg")
	}
	return s
}

// Hyper is the learning rate.
func (o *RMSpropOptimizer) Hyper() []string { return []string{"lr"} }

// HyperAt implements [Optimizer].
func (o *RMSpropOptimizer) HyperAt(_ int, lr float64) []float64 { return []float64{lr} }

// Update implements [Optimizer].
func (o *RMSpropOptimizer) Update(g *ir.Graph, p, grad *ir.Value, state, hyper []*ir.Value) (*ir.Value, []*ir.Value) {
	grad = decayed(g, p, grad, o.weightDecay)
	v := g.Plus(g.Scale(state[0], o.alpha), g.Scale(g.Map(ir.Square, grad), 1-o.alpha))
	next := []*ir.Value{v}
	var avg *ir.Value
	square := v
	if o.centered {
		avg = lerp(g, state[len(state)-1], grad, 1-o.alpha)
		square = g.Minus(v, g.Map(ir.Square, avg))
	}
	step := g.Over(grad, g.Shift(g.Map(ir.Sqrt, square), o.eps))
	if o.momentum != 0 {
		step = g.Plus(g.Scale(state[1], o.momentum), step)
		next = append(next, step)
	}
	if o.centered {
		next = append(next, avg)
	}
	return descend(g, p, step, hyper[0]), next
}
