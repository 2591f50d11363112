package lower

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// batchNorm is (x - mean) / sqrt(variance + epsilon) for each channel, which is dimension 1.
func batchNorm(c *call, args []*ir.Value) (*ir.Value, error) {
	xhat, _, err := c.normalised(args[0], c.n.Op().(*gorgonia.BatchNormOp))
	return xhat, err
}

// batchNormGrad is x, dy -> dx:
//
//	dx = (dy - mean(dy) - xhat mean(dy xhat)) / sqrt(variance + epsilon)
//
// over the batch in training, dy / sqrt(variance + epsilon) in evaluation.
func batchNormGrad(c *call, args []*ir.Value) (*ir.Value, error) {
	g, dy := c.g, args[1]
	xhat, scale, err := c.normalised(args[0], c.op.field("BatchNormOp").Interface().(*gorgonia.BatchNormOp))
	if err != nil {
		return nil, err
	}
	if c.op.bool("training") {
		shared := g.Plus(channelMean(g, dy), g.Times(xhat, channelMean(g, g.Times(dy, xhat))))
		dy = g.Minus(dy, shared)
	}
	return g.Times(dy, scale), nil
}

// normalised returns xhat and 1/sqrt(variance + epsilon), which has extent 1 everywhere but in dimension 1. Forward and
// backward write the same values; a later pass shares them.
func (c *call) normalised(x *ir.Value, op *gorgonia.BatchNormOp) (xhat, scale *ir.Value, err error) {
	if len(x.Shape) < 2 {
		return nil, nil, c.failf("%s has no channels: dimension 1 is the channel", x.Shape)
	}
	g := c.g
	var mean, variance *ir.Value
	var centred *ir.Value
	if c.op.bool("training") {
		mean = channelMean(g, x)
		centred = g.Minus(x, mean)
		variance = channelMean(g, g.Map(ir.Square, centred))
	} else {
		m, v := op.Stats()
		if untouched(m, v) {
			return nil, nil, c.failf("it is in evaluation mode and has no running statistics, which training here does not write: " +
				"use nn.BatchNorm1d or nn.BatchNorm2d, or set them with SetStats")
		}
		if mean, err = channelData(g, m, x.Shape); err != nil {
			return nil, nil, err
		}
		if variance, err = channelData(g, v, x.Shape); err != nil {
			return nil, nil, err
		}
		centred = g.Minus(x, mean)
	}
	scale = g.Map(ir.Rsqrt, g.Shift(variance, c.op.float("epsilon")))
	return g.Times(centred, scale), scale, nil
}

// channelMean is the mean over all dimensions but dimension 1; they stay with extent 1.
func channelMean(g *ir.Graph, x *ir.Value) *ir.Value {
	axes := others(x, []int{1})
	return g.Scale(g.Reduce(ir.Sum, x, axes...), float64(x.Shape[1])/float64(x.Shape.Size()))
}

// channelData writes one number a channel, to be broadcast against x.
func channelData(g *ir.Graph, t tensor.Tensor, x ir.Shape) (*ir.Value, error) {
	data, ok := t.Data().([]float32)
	if !ok || len(data) != x[1] {
		return nil, fmt.Errorf("running statistics are %s%v, not float32 for %d channels", t.Dtype(), t.Shape(), x[1])
	}
	shape := ir.Shape(ones(len(x)))
	shape[1] = x[1]
	return g.Data(append([]float32(nil), data...), shape...), nil
}

// untouched reports whether running statistics are as Gorgonia makes or resets them: mean 0 and all variances 0, or all 1.
func untouched(mean, variance tensor.Tensor) bool {
	all := func(t tensor.Tensor, x float32) bool {
		data, _ := t.Data().([]float32)
		for _, e := range data {
			if e != x {
				return false
			}
		}
		return true
	}
	return all(mean, 0) && (all(variance, 0) || all(variance, 1))
}
