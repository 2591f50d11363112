package nn

import (
	"fmt"
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// Optimizer says how a step changes the parameters. It works on flat vectors, all parameters in one, so that a step is one
// elementwise loop. Everything that it remembers starts at 0.
type Optimizer interface {
	// Name is "sgd", "adam" and so on.
	Name() string
	// Validate reports settings that make no sense.
	Validate() error
	// State names what it remembers of every parameter ("momentum_buffer").
	State() []string
	// LR is the base learning rate, which a [Schedule] may change.
	LR() float64
	// Hyper names the numbers that change from step to step ("lr").
	Hyper() []string
	// HyperAt gives them for a step, counted from 1, and its learning rate.
	HyperAt(step int, lr float64) []float64
	// Update writes the step: parameters p [n], their gradient, the vectors of State and the scalars of Hyper in; the new
	// parameters and state out.
	Update(g *ir.Graph, p, grad *ir.Value, state, hyper []*ir.Value) (*ir.Value, []*ir.Value)
}

// check reports the first of named numbers that is out of its range.
type check struct {
	name   string
	value  float64
	lo, hi float64 // lo <= value < hi
}

func validate(optimizer string, checks ...check) error {
	for _, c := range checks {
		if !(c.value >= c.lo && c.value < c.hi) {
			upto := fmt.Sprintf("below %v", c.hi)
			if math.IsInf(c.hi, 1) {
				upto = "finite"
			}
			return fmt.Errorf("nn: %s: %s is %v: it must be at least %v and %s", optimizer, c.name, c.value, c.lo, upto)
		}
	}
	return nil
}

var inf = math.Inf(1)

// MomentumOption is what [Momentum] returns.
type MomentumOption float64

// Momentum is, for SGD and RMSprop, the share of the last step that the next one keeps (0 without it); for batch
// normalisation, the share of the batch's statistics that goes into the running ones (0.1 without it).
func Momentum(m float64) MomentumOption { return MomentumOption(m) }

// WeightDecayOption is what [WeightDecay] returns.
type WeightDecayOption float64

// WeightDecay adds w times the parameters to their gradient; in AdamW, it takes lr w times the parameters off them.
func WeightDecay(w float64) WeightDecayOption { return WeightDecayOption(w) }

// EpsOption is what [Eps] returns.
type EpsOption float64

// Eps is what keeps a divisor from 0: 1e-5 in normalisations, 1e-8 in optimizers without it.
func Eps(e float64) EpsOption { return EpsOption(e) }

// decayed is grad + w p.
func decayed(g *ir.Graph, p, grad *ir.Value, w float64) *ir.Value {
	if w == 0 {
		return grad
	}
	return g.Plus(grad, g.Scale(p, w))
}

// lerp is a + t (b-a).
func lerp(g *ir.Graph, a, b *ir.Value, t float64) *ir.Value {
	return g.Plus(a, g.Scale(g.Minus(b, a), t))
}

// descend is p - lr*step, written so that a product and a sum make it.
func descend(g *ir.Graph, p, step, lr *ir.Value) *ir.Value {
	return g.Plus(g.Times(step, g.Neg(lr)), p)
}
