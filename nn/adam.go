package nn

import (
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// AdamOptimizer is Adam, or AdamW where the weight decay is decoupled from the gradient:
//
//	g  = grad + weightDecay p              (AdamW: p -= lr weightDecay p instead)
//	m += (1-beta1) (g - m)
//	v += (1-beta2) (g² - v)
//	p -= lr/(1-beta1^t) m / (sqrt(v)/sqrt(1-beta2^t) + eps)
type AdamOptimizer struct {
	lr, beta1, beta2, eps, weightDecay float64
	decoupled                          bool
}

// AdamOption changes an [AdamOptimizer].
type AdamOption interface{ adam(*AdamOptimizer) }

// Adam returns Adam with betas 0.9 and 0.999, eps 1e-8 and no weight decay.
func Adam(lr float64, opts ...AdamOption) *AdamOptimizer {
	return newAdam(AdamOptimizer{lr: lr}, opts)
}

// AdamW returns Adam with decoupled weight decay, 0.01.
func AdamW(lr float64, opts ...AdamOption) *AdamOptimizer {
	return newAdam(AdamOptimizer{lr: lr, weightDecay: 0.01, decoupled: true}, opts)
}

func newAdam(o AdamOptimizer, opts []AdamOption) *AdamOptimizer {
	o.beta1, o.beta2, o.eps = 0.9, 0.999, 1e-8
	for _, opt := range opts {
		opt.adam(&o)
	}
	return &o
}

func (w WeightDecayOption) adam(o *AdamOptimizer) { o.weightDecay = float64(w) }
func (e EpsOption) adam(o *AdamOptimizer)         { o.eps = float64(e) }

// BetasOption is what [Betas] returns.
type BetasOption [2]float64

// Betas are the shares of the old that the running means of the gradient and of its square keep.
func Betas(beta1, beta2 float64) BetasOption { return BetasOption{beta1, beta2} }

func (b BetasOption) adam(o *AdamOptimizer) { o.beta1, o.beta2 = b[0], b[1] }

// Name is "adam" or "adamw".
func (o *AdamOptimizer) Name() string {
	if o.decoupled {
		return "adamw"
	}
	return "adam"
}

// LR implements [Optimizer].
func (o *AdamOptimizer) LR() float64 { return o.lr }

// Validate implements [Optimizer].
func (o *AdamOptimizer) Validate() error {
	return validate(o.Name(), check{"learning rate", o.lr, 0, inf}, check{"beta1", o.beta1, 0, 1}, check{"beta2", o.beta2, 0, 1},
		check{"eps", o.eps, 0, inf}, check{"weight decay", o.weightDecay, 0, inf})
}

// State is the running means of the gradient and of its square.
func (o *AdamOptimizer) State() []string { return []string{"exp_avg", "exp_avg_sq"} }

// Hyper is the corrected step size, the root of the second correction, and in AdamW the share that decay leaves.
func (o *AdamOptimizer) Hyper() []string {
	h := []string{"step_size", "bias_correction2_sqrt"}
	if o.decays() {
		h = append(h, "decay")
	}
	return h
}

func (o *AdamOptimizer) decays() bool { return o.decoupled && o.weightDecay != 0 }

// HyperAt implements [Optimizer].
func (o *AdamOptimizer) HyperAt(step int, lr float64) []float64 {
	t := float64(step)
	h := []float64{lr / (1 - math.Pow(o.beta1, t)), math.Sqrt(1 - math.Pow(o.beta2, t))}
	if o.decays() {
		h = append(h, 1-lr*o.weightDecay)
	}
	return h
}

// Update implements [Optimizer].
func (o *AdamOptimizer) Update(g *ir.Graph, p, grad *ir.Value, state, hyper []*ir.Value) (*ir.Value, []*ir.Value) {
	switch {
	case o.decays():
		p = g.Times(p, hyper[2])
	case !o.decoupled:
		grad = decayed(g, p, grad, o.weightDecay)
	}
	m := lerp(g, state[0], grad, 1-o.beta1)
	v := g.Plus(g.Scale(state[1], o.beta2), g.Scale(g.Map(ir.Square, grad), 1-o.beta2))
	denom := g.Shift(g.Over(g.Map(ir.Sqrt, v), hyper[1]), o.eps)
	return g.Minus(p, g.Over(g.Times(m, hyper[0]), denom)), []*ir.Value{m, v}
}
