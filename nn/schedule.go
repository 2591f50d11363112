package nn

import (
	"fmt"
	"math"
	"slices"
)

// Schedule gives the learning rate of each step, counted from 0, from the optimizer's base rate. Schedules are pure functions:
// training may be resumed at any step.
type Schedule interface {
	// Validate reports settings that make no sense.
	Validate() error
	LR(base float64, step int) float64
}

// ConstantLR is the base rate throughout.
func ConstantLR() Schedule { return constantLR{} }

type constantLR struct{}

func (constantLR) Validate() error                { return nil }
func (constantLR) LR(base float64, _ int) float64 { return base }

// StepLR multiplies the rate by gamma every size steps: base gamma^floor(step/size).
func StepLR(size int, gamma float64) Schedule { return stepLR{size, gamma} }

type stepLR struct {
	size  int
	gamma float64
}

func (s stepLR) Validate() error { return positive("StepLR", "size", s.size) }

func (s stepLR) LR(base float64, step int) float64 {
	return base * math.Pow(s.gamma, float64(step/max(s.size, 1)))
}

// MultiStepLR multiplies the rate by gamma at each of the given steps.
func MultiStepLR(gamma float64, steps ...int) Schedule {
	return multiStepLR{gamma, slices.Clone(steps)}
}

type multiStepLR struct {
	gamma float64
	steps []int
}

func (multiStepLR) Validate() error { return nil }

func (s multiStepLR) LR(base float64, step int) float64 {
	for _, at := range s.steps {
		if step >= at {
			base *= s.gamma
		}
	}
	return base
}

// CosineAnnealing goes from base to least in the form of half a cosine: least + (base-least) (1 + cos(π step/steps)) / 2.
// After steps it goes up again.
func CosineAnnealing(steps int, least float64) Schedule { return cosine{steps, least} }

type cosine struct {
	steps int
	least float64
}

func (s cosine) Validate() error { return positive("CosineAnnealing", "steps", s.steps) }

func (s cosine) LR(base float64, step int) float64 {
	return s.least + (base-s.least)*(1+math.Cos(math.Pi*float64(step)/float64(max(s.steps, 1))))/2
}

// LinearLR goes from base first to base last in a straight line over steps, and stays there.
func LinearLR(first, last float64, steps int) Schedule { return linearLR{first, last, steps} }

type linearLR struct {
	first, last float64
	steps       int
}

func (s linearLR) Validate() error { return positive("LinearLR", "steps", s.steps) }

func (s linearLR) LR(base float64, step int) float64 {
	n := max(s.steps, 1)
	return base * (s.first + (s.last-s.first)*float64(min(step, n))/float64(n))
}

// Warmup rises to the base rate in a straight line over steps, base (step+1)/steps, and goes on with then, whose steps count
// from there. A nil then is [ConstantLR].
func Warmup(steps int, then Schedule) Schedule {
	if then == nil {
		then = ConstantLR()
	}
	return warmup{steps, then}
}

type warmup struct {
	steps int
	then  Schedule
}

func (s warmup) Validate() error {
	if s.steps < 0 {
		return fmt.Errorf("nn: Warmup: steps are %d: they must not be negative", s.steps)
	}
	return s.then.Validate()
}

func (s warmup) LR(base float64, step int) float64 {
	if step < s.steps {
		return base * float64(step+1) / float64(s.steps)
	}
	return s.then.LR(base, step-s.steps)
}

// OneCycleLR rises from base/Div to the base rate, its peak, over the share Rise of the steps, and falls to base/Div/FinalDiv
// at the last. Both ways have the form of half a cosine, or are straight if Linear.
type OneCycleLR struct {
	Steps    int
	Rise     float64
	Div      float64
	FinalDiv float64
	Linear   bool
}

// OneCycle returns the usual cycle: up over 30 % of the steps from a 25th of the peak, then down to a 10,000th of that.
func OneCycle(steps int) OneCycleLR {
	return OneCycleLR{Steps: steps, Rise: 0.3, Div: 25, FinalDiv: 1e4}
}

// Validate implements [Schedule].
func (s OneCycleLR) Validate() error {
	switch {
	case s.Rise < 0 || s.Rise > 1 || math.IsNaN(s.Rise):
		return fmt.Errorf("nn: OneCycle: the share that rises is %v: it must be in 0..1", s.Rise)
	case !(s.Div > 0) || !(s.FinalDiv > 0):
		return fmt.Errorf("nn: OneCycle: divisors are %v and %v: they must be above 0", s.Div, s.FinalDiv)
	}
	return positive("OneCycle", "steps", s.Steps)
}

// LR implements [Schedule].
func (s OneCycleLR) LR(base float64, step int) float64 {
	first := base / s.Div
	last := first / s.FinalDiv
	top, end := s.Rise*float64(s.Steps)-1, float64(s.Steps)-1
	switch x := math.Min(float64(step), end); {
	case x < top:
		return s.between(first, base, x/top)
	case x == top: // with no way up before it, or none down after it, perhaps
		return base
	default:
		return s.between(base, last, (x-top)/(end-top))
	}
}

// between goes from a to b as t goes from 0 to 1.
func (s OneCycleLR) between(a, b, t float64) float64 {
	if s.Linear {
		return a + (b-a)*t
	}
	return b + (a-b)*(1+math.Cos(math.Pi*t))/2
}

// PerEpoch makes s count epochs of steps steps.
func PerEpoch(s Schedule, steps int) Schedule { return perEpoch{s, steps} }

type perEpoch struct {
	Schedule
	steps int
}

func (s perEpoch) Validate() error {
	if s.Schedule == nil {
		return fmt.Errorf("nn: PerEpoch: the schedule is nil")
	}
	if err := positive("PerEpoch", "steps", s.steps); err != nil {
		return err
	}
	return s.Schedule.Validate()
}

func (s perEpoch) LR(base float64, step int) float64 {
	return s.Schedule.LR(base, step/max(s.steps, 1))
}

func positive(schedule, what string, n int) error {
	if n < 1 {
		return fmt.Errorf("nn: %s: %s is %d: it must be at least 1", schedule, what, n)
	}
	return nil
}
