package nn

import (
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/nn/op"
)

// BatchNormLayer normalises every channel of [N, Features, ...]: in training by the batch's mean and variance, in evaluation
// by running ones. (x-mean)/sqrt(var+eps) Weight + Bias.
type BatchNormLayer struct {
	Features     int
	Weight, Bias *Parameter // [Features], ones and zeros; nil without affine

	// The running statistics: of the variance the unbiased one. Nil without running statistics; the batch's own are used
	// in evaluation, too, then.
	RunningMean       *Buffer `nn:"running_mean"`        // [Features]
	RunningVar        *Buffer `nn:"running_var"`         // [Features]
	NumBatchesTracked *Buffer `nn:"num_batches_tracked"` // a scalar: training steps so far

	twoD, sync    bool
	cumulative    bool // the running statistics are plain means of all batches
	eps, momentum float64
}

// BatchNormOption changes a [BatchNormLayer].
type BatchNormOption interface{ batchNorm(*BatchNormLayer) }

// BatchNorm1d normalises features of [N, C], or channels of [N, C, L].
func BatchNorm1d(features int, opts ...BatchNormOption) *BatchNormLayer {
	return newBatchNorm(features, false, opts)
}

// BatchNorm2d normalises the channels of [N, C, H, W].
func BatchNorm2d(features int, opts ...BatchNormOption) *BatchNormLayer {
	return newBatchNorm(features, true, opts)
}

func newBatchNorm(n int, twoD bool, opts []BatchNormOption) *BatchNormLayer {
	l := &BatchNormLayer{
		Features: n, Weight: NewParameter(Ones(), n), Bias: NewParameter(Zeros(), n),
		RunningMean: NewBuffer(0, n), RunningVar: NewBuffer(1, n), NumBatchesTracked: NewBuffer(0),
		twoD: twoD, eps: 1e-5, momentum: 0.1,
	}
	for _, o := range opts {
		o.batchNorm(l)
	}
	return l
}

// BatchNormSetting is an option of batch normalisation alone.
type BatchNormSetting func(*BatchNormLayer)

func (s BatchNormSetting) batchNorm(l *BatchNormLayer) { s(l) }

// Sync takes the statistics over the samples of all ranks, so that any number of ranks computes what one would.
func Sync() BatchNormSetting { return func(l *BatchNormLayer) { l.sync = true } }

// CumulativeAverage makes the running statistics plain means of those of all batches, in place of a [Momentum].
func CumulativeAverage() BatchNormSetting { return func(l *BatchNormLayer) { l.cumulative = true } }

// NoRunningStats uses the batch's statistics in evaluation, too.
func NoRunningStats() BatchNormSetting {
	return func(l *BatchNormLayer) { l.RunningMean, l.RunningVar, l.NumBatchesTracked = nil, nil, nil }
}

func (m MomentumOption) batchNorm(l *BatchNormLayer) { l.momentum = float64(m) }
func (e EpsOption) batchNorm(l *BatchNormLayer)      { l.eps = float64(e) }

// NoAffineOption is what [NoAffine] returns.
type NoAffineOption struct{}

// NoAffine leaves out weight and bias of a normalisation.
func NoAffine() NoAffineOption { return NoAffineOption{} }

func (NoAffineOption) batchNorm(l *BatchNormLayer) { l.Weight, l.Bias = nil, nil }

// String is "BatchNorm2d 16".
func (l *BatchNormLayer) String() string {
	if l.twoD {
		return fmt.Sprintf("BatchNorm2d %d", l.Features)
	}
	return fmt.Sprintf("BatchNorm1d %d", l.Features)
}

func (l *BatchNormLayer) check(shape []int) error {
	switch rank := len(shape); {
	case l.Features < 1:
		return fmt.Errorf("features must be at least 1")
	case !(l.momentum >= 0 && l.momentum <= 1):
		return fmt.Errorf("momentum is %v: it must be in 0..1", l.momentum)
	case !(l.eps >= 0):
		return fmt.Errorf("eps is %v: it must not be negative", l.eps)
	case l.twoD && (rank != 4 || shape[1] != l.Features):
		return fmt.Errorf("input %s: wants [N, %d, H, W]", dims(shape), l.Features)
	case !l.twoD && (rank != 2 && rank != 3 || shape[1] != l.Features):
		return fmt.Errorf("input %s: wants [N, %d] or [N, %d, L]", dims(shape), l.Features, l.Features)
	case (l.Weight == nil) != (l.Bias == nil):
		return fmt.Errorf("has one of weight and bias: give it both or none")
	case (l.RunningMean == nil) != (l.RunningVar == nil):
		return fmt.Errorf("has one of running mean and running variance: give it both or none")
	case l.cumulative && l.RunningMean != nil && l.NumBatchesTracked == nil:
		return fmt.Errorf("a cumulative average needs the number of batches tracked")
	}
	return nil
}

// Forward implements [Module].
func (l *BatchNormLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	s := x.Shape()
	if err := l.check(s); err != nil {
		return nil, g.errorf(l, "%w", err)
	}
	w, b := g.optional(l.Weight), g.optional(l.Bias)
	if !g.Training() && l.RunningMean != nil {
		y, err := op.Normalize(x, g.Buffer(l.RunningMean), g.Buffer(l.RunningVar), w, b, l.eps)
		return g.leave(l, y, err)
	}
	if g.Training() && !l.sync && sizeOf(s) == l.Features {
		return nil, g.errorf(l, "input %s has one value a channel, whose variance is 0: give each card two samples or more, or use nn.Sync", dims(s))
	}
	y, err := op.BatchNorm(x, w, b, l.eps, l.sync)
	if err == nil && g.Training() && l.RunningMean != nil {
		err = l.track(g, x)
	}
	return g.leave(l, y, err)
}

// track moves the running statistics towards the batch's.
func (l *BatchNormLayer) track(g *Graph, x *gorgonia.Node) error {
	var count *gorgonia.Node
	if l.NumBatchesTracked != nil {
		var err error
		if count, err = op.Shift(g.Latest(l.NumBatchesTracked), 1); err != nil {
			return err
		}
		g.Update(l.NumBatchesTracked, count)
	}
	for _, t := range []struct {
		buffer *Buffer
		stat   func(*gorgonia.Node, bool) (*gorgonia.Node, error)
	}{{l.RunningMean, op.BatchMean}, {l.RunningVar, op.BatchVar}} {
		batch, err := t.stat(x, l.sync)
		if err != nil {
			return err
		}
		var next *gorgonia.Node
		if l.cumulative {
			next, err = op.RunningMean(g.Latest(t.buffer), batch, count)
		} else {
			next, err = op.Lerp(g.Latest(t.buffer), batch, l.momentum)
		}
		if err != nil {
			return err
		}
		g.Update(t.buffer, next)
	}
	return nil
}

// LayerNormLayer normalises the last dimensions of each sample: (x-mean)/sqrt(var+eps) Weight + Bias.
type LayerNormLayer struct {
	Shape        []int      // of the last dimensions, which are normalised together
	Weight, Bias *Parameter // of that shape, ones and zeros; nil without affine

	eps      float64
	noAffine bool
}

// LayerNormOption changes a [LayerNormLayer].
type LayerNormOption interface{ layerNorm(*LayerNormLayer) }

// LayerNorm normalises the last dimension, of n elements, or the dimensions that [NormalizedShape] says.
func LayerNorm(n int, opts ...LayerNormOption) *LayerNormLayer {
	l := &LayerNormLayer{Shape: []int{n}, eps: 1e-5}
	for _, o := range opts {
		o.layerNorm(l)
	}
	if !l.noAffine {
		l.Weight, l.Bias = NewParameter(Ones(), l.Shape...), NewParameter(Zeros(), l.Shape...)
	}
	return l
}

// NormalizedShapeOption is what [NormalizedShape] returns.
type NormalizedShapeOption []int

// NormalizedShape makes layer normalisation normalise several last dimensions together.
func NormalizedShape(dims ...int) NormalizedShapeOption { return slices.Clone(dims) }

func (d NormalizedShapeOption) layerNorm(l *LayerNormLayer) { l.Shape = d }
func (e EpsOption) layerNorm(l *LayerNormLayer)             { l.eps = float64(e) }
func (NoAffineOption) layerNorm(l *LayerNormLayer)          { l.noAffine = true }

// String is "LayerNorm [64]".
func (l *LayerNormLayer) String() string { return "LayerNorm " + dims(l.Shape) }

// Forward implements [Module].
func (l *LayerNormLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	s := x.Shape()
	switch rest := len(s) - len(l.Shape); {
	case len(l.Shape) == 0 || checkShape(l.Shape) != nil:
		return nil, g.errorf(l, "the normalised dimensions must be one or more, of at least 1")
	case !(l.eps >= 0):
		return nil, g.errorf(l, "eps is %v: it must not be negative", l.eps)
	case (l.Weight == nil) != (l.Bias == nil):
		return nil, g.errorf(l, "has one of weight and bias: give it both or none")
	case rest < 1 || !slices.Equal(s[rest:], l.Shape):
		return nil, g.errorf(l, "input %s does not end in %s after a dimension of samples", dims(s), dims(l.Shape))
	}
	y, err := op.LayerNorm(x, g.optional(l.Weight), g.optional(l.Bias), len(l.Shape), l.eps)
	return g.leave(l, y, err)
}
