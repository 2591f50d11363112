package op

import (
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Classes says how classification losses read labels.
type Classes struct {
	// Ignore is a label whose samples count for nothing.
	Ignore int
	// Weights holds a factor for each class; nil means 1.
	Weights []float32
	// Smoothing mixes the label with the uniform distribution: 0 is the label alone.
	Smoothing float64
}

// check passes labels through the range check of C classes and lays them out as a vector.
func (c Classes) check(g *ir.Graph, labels *ir.Value, classes int) *ir.Value {
	l := g.Add(ir.CheckIndex{Bound: classes, Ignore: c.Ignore, What: "label"}, nil, labels)
	return g.Reshape(l, l.Shape.Size())
}

// weights is the vector of class weights.
func (c Classes) weights(g *ir.Graph, classes int) *ir.Value {
	if c.Weights == nil {
		return g.Const(1, classes)
	}
	return g.Data(c.Weights, classes)
}

// oneHot is, for rows of labels, a matrix [n, classes] of 1 at the label, all 0 where it is ignored.
func (c Classes) oneHot(g *ir.Graph, labels *ir.Value, classes int) *ir.Value {
	n := labels.Shape[0]
	l := g.Reshape(g.Map(ir.Float, labels), n, 1)
	hot := g.Map(ir.Eq, g.Iota(1, n, classes), l)
	if c.Ignore >= 0 && c.Ignore < classes {
		hot = g.Times(hot, g.Map(ir.Ne, l, g.Const(float64(c.Ignore))))
	}
	return hot
}

// classRows lays scores [N, C, d...] out as a matrix [N*d, C].
func classRows(g *ir.Graph, x *ir.Value) *ir.Value {
	n := len(x.Shape)
	if n < 2 {
		g.Fail(shapeError("scores [N, C, ...]", x))
		return g.Const(0, 1, 1)
	}
	if n > 2 {
		perm := []int{0}
		for i := 2; i < n; i++ {
			perm = append(perm, i)
		}
		x = g.Transpose(x, append(perm, 1)...)
	}
	return rows(g, x)
}

// unrows is classRows undone: [N*d, C] -> shape [N, C, d...].
func unrows(g *ir.Graph, m *ir.Value, shape ir.Shape) *ir.Value {
	n := len(shape)
	if n == 2 {
		return m
	}
	m = g.Reshape(m, slices.Concat(shape[:1], shape[2:], shape[1:2])...)
	perm := []int{0, n - 1}
	for i := 1; i < n-1; i++ {
		perm = append(perm, i)
	}
	return g.Transpose(m, perm...)
}

// CrossEntropy is the sum over samples of the cross entropy of softmax(logits) with the labels:
// logits [N, C, d...], labels int32 [N, d...] -> scalar.
func CrossEntropy(logits, labels *gorgonia.Node, c Classes) (*gorgonia.Node, error) {
	return apply(crossEntropy{c}, logits, labels)
}

type crossEntropy struct{ C Classes }

func (k crossEntropy) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := classRows(g, a[0])
	classes := x.Shape[1]
	l := g.Add(ir.CrossEntropy{Smoothing: k.C.Smoothing, Ignore: k.C.Ignore}, nil,
		x, k.C.check(g, a[1], classes), k.C.weights(g, classes))
	return g.Sum(l)
}

func (crossEntropy) wrt(i int) bool { return i == 0 }

func (k crossEntropy) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := apply(crossEntropyGrad(k), a[0], a[1], dy)
	return gorgonia.Nodes{dx, nil}, err
}

// crossEntropyGrad is logits, labels, dsum -> dlogits.
type crossEntropyGrad struct{ C Classes }

func (k crossEntropyGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := classRows(g, a[0])
	classes := x.Shape[1]
	dx := g.Add(ir.CrossEntropyGrad{Smoothing: k.C.Smoothing, Ignore: k.C.Ignore}, nil,
		x, k.C.check(g, a[1], classes), k.C.weights(g, classes), g.BroadcastTo(a[2], x.Shape[0]))
	return unrows(g, dx, a[0].Shape)
}

// NLL is the sum over samples of -w[label] logp[label]: logp [N, C, d...], labels int32 [N, d...] -> scalar.
// Smoothing is not used.
func NLL(logp, labels *gorgonia.Node, c Classes) (*gorgonia.Node, error) {
	return apply(nll{c}, logp, labels)
}

type nll struct{ C Classes }

// factors is -w at each row's label and 0 elsewhere, and the one-hot matrix.
func (k nll) factors(g *ir.Graph, scores, labels *ir.Value) (f, hot *ir.Value) {
	x := classRows(g, scores)
	classes := x.Shape[1]
	hot = k.C.oneHot(g, k.C.check(g, labels, classes), classes)
	return g.Neg(g.Times(hot, k.C.weights(g, classes))), hot
}

func (k nll) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	f, hot := k.factors(g, a[0], a[1])
	// Other classes may hold -inf, which times 0 is not 0.
	return g.Sum(g.Select(hot, g.Times(f, classRows(g, a[0])), g.Const(0)))
}

func (nll) wrt(i int) bool { return i == 0 }

func (k nll) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := apply(nllGrad(k), a[0], a[1], dy)
	return gorgonia.Nodes{dx, nil}, err
}

// nllGrad is logp, labels, dsum -> dlogp.
type nllGrad struct{ C Classes }

func (k nllGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	f, _ := nll(k).factors(g, a[0], a[1])
	return unrows(g, g.Times(f, a[2]), a[0].Shape)
}

// LabelWeight is the sum of the weights of the labels that are not ignored, which a mean over samples divides by:
// labels int32 [...] -> scalar. It has no gradient.
func LabelWeight(labels *gorgonia.Node, classes int, c Classes) (*gorgonia.Node, error) {
	return apply(labelWeight{classes, c}, labels)
}

type labelWeight struct {
	Classes int
	C       Classes
}

func (k labelWeight) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	l := k.C.check(g, a[0], k.Classes)
	if k.C.Weights == nil {
		return g.Sum(g.Map(ir.Ne, g.Map(ir.Float, l), g.Const(float64(k.C.Ignore))))
	}
	return g.Sum(g.Times(k.C.oneHot(g, l, k.Classes), k.C.weights(g, k.Classes)))
}

// SquaredError is the sum of (x-t)². x and t have one shape; t has no gradient.
func SquaredError(x, t *gorgonia.Node) (*gorgonia.Node, error) { return apply(errorSum{squared}, x, t) }

// AbsoluteError is the sum of |x-t|. x and t have one shape; t has no gradient.
func AbsoluteError(x, t *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(errorSum{absolute}, x, t)
}

// distance is how an error counts.
type distance string

const (
	squared  distance = "squared"
	absolute distance = "absolute"
)

type errorSum struct{ Fn distance }

func (k errorSum) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	if !a[0].Shape.Equal(a[1].Shape) {
		g.Fail(shapeError("output and target of one shape", a...))
		return g.Const(0)
	}
	d := g.Minus(a[0], a[1])
	if k.Fn == squared {
		return g.Sum(g.Map(ir.Square, d))
	}
	return g.Sum(g.Map(ir.Abs, d))
}

func (errorSum) wrt(i int) bool { return i == 0 }

func (k errorSum) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := apply(errorSumGrad(k), a[0], a[1], dy)
	return gorgonia.Nodes{dx, nil}, err
}

// errorSumGrad is x, t, dsum -> dx.
type errorSumGrad struct{ Fn distance }

func (k errorSumGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	d := g.Minus(a[0], a[1])
	if k.Fn == squared {
		return g.Times(d, g.Scale(a[2], 2))
	}
	return g.Times(g.Map(ir.Sign, d), a[2])
}

// BCEWithLogits is the sum of the binary cross entropies of sigmoid(x) with targets t in 0..1, of the shape of x:
//
//	(1-t) x + (1 + (p-1) t) log(1+exp(-x))
//
// where p is the weight of the positive class: 1 if posWeight is empty, one for all, or one for each index of the last dimension.
func BCEWithLogits(x, t *gorgonia.Node, posWeight []float32) (*gorgonia.Node, error) {
	return apply(bce{posWeight}, x, t)
}

type bce struct{ Pos []float32 }

// factor is 1 + (p-1) t.
func (k bce) factor(g *ir.Graph, x, t *ir.Value) *ir.Value {
	switch n := len(k.Pos); {
	case n == 0:
		return g.Const(1)
	case n == 1 || len(x.Shape) > 0 && n == x.Shape[len(x.Shape)-1]:
		return g.Shift(g.Times(g.Shift(g.Data(k.Pos, n), -1), t), 1)
	default:
		g.Fail(fmt.Errorf("%d weights for outputs %s: give one, or one for each index of the last dimension", n, x.Shape))
		return g.Const(1)
	}
}

func (k bce) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x, t := a[0], a[1]
	if !x.Shape.Equal(t.Shape) {
		g.Fail(shapeError("output and target of one shape", a...))
		return g.Const(0)
	}
	l := g.Times(k.factor(g, x, t), g.Map(ir.Softplus, g.Neg(x)))
	return g.Sum(g.Plus(g.Times(g.Minus(g.Const(1), t), x), l))
}

func (bce) wrt(i int) bool { return i == 0 }

func (k bce) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := apply(bceGrad(k), a[0], a[1], dy)
	return gorgonia.Nodes{dx, nil}, err
}

// bceGrad is x, t, dsum -> dx = dsum ((1-t) - (1 + (p-1) t) sigmoid(-x)).
type bceGrad struct{ Pos []float32 }

func (k bceGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x, t := a[0], a[1]
	s := g.Times(bce(k).factor(g, x, t), g.Map(ir.Sigmoid, g.Neg(x)))
	return g.Times(g.Minus(g.Minus(g.Const(1), t), s), a[2])
}
