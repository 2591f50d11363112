package op

import (
	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// BatchNorm normalises every channel of x [N, C, ...] by the batch's own mean and (biased) variance:
// (x-mean)/sqrt(var+eps) w + b, with w, b [C] or nil. With sync the statistics are those of all ranks' samples together.
func BatchNorm(x, w, b *gorgonia.Node, eps float64, sync bool) (*gorgonia.Node, error) {
	return applyAffine(batchNorm{eps, sync}, w, b, x)
}

// BatchMean is the mean of every channel of x [N, C, ...] -> [C]. It has no gradient.
func BatchMean(x *gorgonia.Node, sync bool) (*gorgonia.Node, error) {
	return apply(batchStat{Sync: sync}, x)
}

// BatchVar is the unbiased variance of every channel of x [N, C, ...] -> [C]. It has no gradient.
func BatchVar(x *gorgonia.Node, sync bool) (*gorgonia.Node, error) {
	return apply(batchStat{Var: true, Sync: sync}, x)
}

// Normalize is (x-mean)/sqrt(var+eps) w + b for given statistics: x [N, C, ...], mean, var [C], w, b [C] or nil.
// There is no gradient by mean and var.
func Normalize(x, mean, variance, w, b *gorgonia.Node, eps float64) (*gorgonia.Node, error) {
	return applyAffine(normalize{eps}, w, b, x, mean, variance)
}

// LayerNorm normalises the last dims dimensions of x: (x-mean)/sqrt(var+eps) w + b, w and b having the shape of those
// dimensions or being nil.
func LayerNorm(x, w, b *gorgonia.Node, dims int, eps float64) (*gorgonia.Node, error) {
	return applyAffine(layerNorm{dims, eps}, w, b, x)
}

func applyAffine(k kernel, w, b *gorgonia.Node, args ...*gorgonia.Node) (*gorgonia.Node, error) {
	if w != nil || b != nil {
		args = append(args, w, b)
	}
	return apply(k, args...)
}

// perChannel lays a vector [C] out along the channels of x.
func perChannel(g *ir.Graph, v, x *ir.Value) *ir.Value {
	shape := make(ir.Shape, len(x.Shape))
	for i := range shape {
		shape[i] = 1
	}
	shape[1] = v.Shape.Size()
	return g.Reshape(v, shape...)
}

func checkChannels(g *ir.Graph, x *ir.Value, vectors ...*ir.Value) bool {
	ok := len(x.Shape) >= 2
	for _, v := range vectors {
		ok = ok && len(v.Shape) == 1 && v.Shape[0] == x.Shape[1]
	}
	if !ok {
		g.Fail(shapeError("x [N, C, ...] and vectors [C]", append([]*ir.Value{x}, vectors...)...))
	}
	return ok
}

// moments holds the statistics of the channels of x, shaped [1, C, 1, ...], and the number of elements in each.
type moments struct{ mean, variance, n *ir.Value }

// sumChannels sums over all that a channel has, over all ranks if sync.
func sumChannels(g *ir.Graph, x *ir.Value, sync bool) *ir.Value {
	s := g.Reduce(ir.Sum, x, allBut(1, x)...)
	if sync {
		s = g.Add(ir.AllReduceSum{}, nil, s)
	}
	return s
}

// batchMoments takes the variance about the mean in a second pass: in one pass, E[x²]-E[x]² loses all digits where the mean
// is large.
func batchMoments(g *ir.Graph, x *ir.Value, sync bool) moments {
	var m moments
	m.n = g.Const(float64(x.Shape.Size() / x.Shape[1]))
	if sync {
		m.n = g.Add(ir.AllReduceSum{}, nil, m.n)
	}
	m.mean = g.Over(sumChannels(g, x, sync), m.n)
	m.variance = g.Over(sumChannels(g, g.Map(ir.Square, g.Minus(x, m.mean)), sync), m.n)
	return m
}

func rstd(g *ir.Graph, variance *ir.Value, eps float64) *ir.Value {
	return g.Map(ir.Rsqrt, g.Shift(variance, eps))
}

type batchNorm struct {
	Eps  float64
	Sync bool
}

func (k batchNorm) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	if !checkChannels(g, x, a[1:]...) {
		return x
	}
	m := batchMoments(g, x, k.Sync)
	return scaleShift(g, g.Minus(x, m.mean), rstd(g, m.variance, k.Eps), a[1:])
}

// scaleShift is centred * rstd * w + b; affine holds w and b or nothing.
func scaleShift(g *ir.Graph, centred, rstd *ir.Value, affine []*ir.Value) *ir.Value {
	if len(affine) == 0 {
		return g.Times(centred, rstd)
	}
	w, b := perChannel(g, affine[0], centred), perChannel(g, affine[1], centred)
	return g.Plus(g.Times(centred, g.Times(rstd, w)), b)
}

func (batchNorm) wrt(int) bool { return true }

func (k batchNorm) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	var g grads
	if len(a) == 1 {
		g.add(apply(batchNormGradX(k), a[0], dy))
		return g.get()
	}
	g.add(apply(batchNormGradX(k), a[0], dy, a[1]))
	g.add(apply(batchNormGradW(k), a[0], dy))
	g.add(apply(channelSum{}, dy))
	return g.get()
}

// batchNormGradX is x, dy[, w] -> dx = w rstd (dy - mean(dy) - xhat mean(dy xhat)), the means over all that the statistics
// are taken over.
type batchNormGradX struct {
	Eps  float64
	Sync bool
}

func (k batchNormGradX) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x, dy := a[0], a[1]
	m := batchMoments(g, x, k.Sync)
	r := rstd(g, m.variance, k.Eps)
	xhat := g.Times(g.Minus(x, m.mean), r)
	meanDy := g.Over(sumChannels(g, dy, k.Sync), m.n)
	meanDyXhat := g.Over(sumChannels(g, g.Times(dy, xhat), k.Sync), m.n)
	if len(a) == 3 {
		r = g.Times(r, perChannel(g, a[2], x))
	}
	return g.Times(g.Minus(g.Minus(dy, meanDy), g.Times(xhat, meanDyXhat)), r)
}

// batchNormGradW is x, dy -> dw = sum(dy xhat), of the rank's own samples.
type batchNormGradW struct {
	Eps  float64
	Sync bool
}

func (k batchNormGradW) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x, dy := a[0], a[1]
	m := batchMoments(g, x, k.Sync)
	xhat := g.Times(g.Minus(x, m.mean), rstd(g, m.variance, k.Eps))
	return g.Reshape(sumChannels(g, g.Times(dy, xhat), false), x.Shape[1])
}

type batchStat struct{ Var, Sync bool }

func (k batchStat) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	if !checkChannels(g, x) {
		return x
	}
	m := batchMoments(g, x, k.Sync)
	if !k.Var {
		return g.Reshape(m.mean, x.Shape[1])
	}
	unbiased := g.Over(m.n, g.Map(ir.Max, g.Shift(m.n, -1), g.Const(1)))
	return g.Reshape(g.Times(m.variance, unbiased), x.Shape[1])
}

type normalize struct{ Eps float64 }

func (k normalize) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	if !checkChannels(g, x, a[1:]...) {
		return x
	}
	return scaleShift(g, g.Minus(x, perChannel(g, a[1], x)), rstd(g, perChannel(g, a[2], x), k.Eps), a[3:])
}

func (normalize) wrt(i int) bool { return i == 0 || i > 2 }

func (k normalize) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	var g grads
	if len(a) == 3 {
		g.add(apply(normalizeGradX(k), dy, a[2]))
		return append(g.nodes, nil, nil), g.err
	}
	g.add(apply(normalizeGradX(k), dy, a[2], a[3]))
	g.add(nil, nil)
	g.add(nil, nil)
	g.add(apply(normalizeGradW(k), a[0], a[1], a[2], dy))
	g.add(apply(channelSum{}, dy))
	return g.get()
}

// normalizeGradX is dy, var[, w] -> dx = dy w / sqrt(var+eps).
type normalizeGradX struct{ Eps float64 }

func (k normalizeGradX) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	r := rstd(g, perChannel(g, a[1], a[0]), k.Eps)
	if len(a) == 3 {
		r = g.Times(r, perChannel(g, a[2], a[0]))
	}
	return g.Times(a[0], r)
}

// normalizeGradW is x, mean, var, dy -> dw = sum(dy xhat).
type normalizeGradW struct{ Eps float64 }

func (k normalizeGradW) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	xhat := g.Times(g.Minus(x, perChannel(g, a[1], x)), rstd(g, perChannel(g, a[2], x), k.Eps))
	return g.Reshape(sumChannels(g, g.Times(a[3], xhat), false), x.Shape[1])
}

type layerNorm struct {
	Dims int
	Eps  float64
}

// standardize is xhat and 1/sqrt(var+eps), of the last dims dimensions, and those axes.
func standardize(g *ir.Graph, x *ir.Value, dims int, eps float64) (xhat, r *ir.Value, axes []int) {
	for i := len(x.Shape) - dims; i < len(x.Shape); i++ {
		axes = append(axes, i)
	}
	n := g.Const(float64(x.Shape[len(x.Shape)-dims:].Size()))
	centred := g.Minus(x, g.Over(g.Reduce(ir.Sum, x, axes...), n))
	r = rstd(g, g.Over(g.Reduce(ir.Sum, g.Map(ir.Square, centred), axes...), n), eps)
	return g.Times(centred, r), r, axes
}

func (k layerNorm) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	if k.Dims < 1 || k.Dims > len(x.Shape) {
		g.Fail(shapeError("x with the normalised dimensions", x))
		return x
	}
	last := x.Shape[len(x.Shape)-k.Dims:]
	y, _, _ := standardize(g, x, k.Dims, k.Eps)
	if len(a) == 1 {
		return y
	}
	if !a[1].Shape.Equal(last) || !a[2].Shape.Equal(last) {
		g.Fail(shapeError("x and weight and bias of its last dimensions", a...))
		return x
	}
	return g.Plus(g.Times(y, a[1]), a[2])
}

func (layerNorm) wrt(int) bool { return true }

func (k layerNorm) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	var g grads
	if len(a) == 1 {
		g.add(apply(layerNormGradX(k), a[0], dy))
		return g.get()
	}
	g.add(apply(layerNormGradX(k), a[0], dy, a[1]))
	g.add(apply(layerNormGradW(k), a[0], dy))
	g.add(apply(sumLast{k.Dims}, dy))
	return g.get()
}

// layerNormGradX is x, dy[, w] -> dx = rstd (d - mean(d) - xhat mean(d xhat)) with d = dy w.
type layerNormGradX struct {
	Dims int
	Eps  float64
}

func (k layerNormGradX) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x, d := a[0], a[1]
	if len(a) == 3 {
		d = g.Times(d, a[2])
	}
	xhat, r, axes := standardize(g, x, k.Dims, k.Eps)
	mean := func(v *ir.Value) *ir.Value {
		return g.Over(g.Reduce(ir.Sum, v, axes...), g.Const(float64(x.Shape[axes[0]:].Size())))
	}
	return g.Times(r, g.Minus(g.Minus(d, mean(d)), g.Times(xhat, mean(g.Times(d, xhat)))))
}

// layerNormGradW is x, dy -> dw = sum(dy xhat).
type layerNormGradW struct {
	Dims int
	Eps  float64
}

func (k layerNormGradW) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	xhat, _, _ := standardize(g, a[0], k.Dims, k.Eps)
	return sumLast{k.Dims}.Lower(g, []*ir.Value{g.Times(a[1], xhat)})
}

// sumLast sums all dimensions but the last Dims.
type sumLast struct{ Dims int }

func (k sumLast) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	return g.SumTo(x, x.Shape[len(x.Shape)-k.Dims:]...)
}

// channelSum sums all dimensions but the second: [N, C, ...] -> [C].
type channelSum struct{}

func (channelSum) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	return g.Sum(a[0], allBut(1, a[0])...)
}

// allBut lists the axes of x other than axis.
func allBut(axis int, x *ir.Value) []int {
	var axes []int
	for i := range x.Shape {
		if i != axis {
			axes = append(axes, i)
		}
	}
	return axes
}
