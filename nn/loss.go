package nn

import (
	"cmp"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/nn/op"
)

// Loss is what training makes small.
type Loss interface {
	// Loss adds the loss of the model's output for a target to the graph.
	Loss(g *Graph, out, target *gorgonia.Node) (Term, error)
	// Target says what the target must be for an output of that shape: tensor.Int32 for class labels, or tensor.Float32.
	Target(out tensor.Shape) (tensor.Dtype, tensor.Shape, error)
}

// Term is a rank's part of a loss, in scalars. The loss of the whole batch is the sum of Sum over all ranks, divided by the
// sum of Weight: so uneven shares weigh what they should.
type Term struct {
	Sum *gorgonia.Node
	// Weight is what the rank's samples weigh together. Nil: their number.
	Weight *gorgonia.Node
	// Total: no division; the loss is the sum itself.
	Total bool
}

// LossFunc makes a loss of a function that gives the mean over the samples of its arguments, a scalar, written with
// Gorgonia's functions or whatever adds nodes. The target is float32 of the output's shape.
//
//	nn.LossFunc(func(g *nn.Graph, out, target *gorgonia.Node) (*gorgonia.Node, error) { ... })
type LossFunc func(g *Graph, out, target *gorgonia.Node) (mean *gorgonia.Node, err error)

// Target implements [Loss].
func (f LossFunc) Target(out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	return sameTarget("loss function", out)
}

// Loss implements [Loss].
func (f LossFunc) Loss(g *Graph, out, target *gorgonia.Node) (Term, error) {
	mean, err := f(g, out, target)
	if err != nil {
		return Term{}, fmt.Errorf("nn: loss function: %w", err)
	}
	if mean == nil || !mean.IsScalar() {
		return Term{}, fmt.Errorf("nn: loss function: the mean over the samples must be a scalar node, not %v", mean)
	}
	n := float64(cmp.Or(g.samples, out.Shape()[0]))
	var t Term
	if t.Sum, err = op.Scale(mean, n); err == nil {
		t.Weight, err = op.Number(out, n)
	}
	if err != nil {
		return Term{}, fmt.Errorf("nn: loss function: %w", err)
	}
	return t, nil
}

// sameTarget is the target of losses that compare element by element.
func sameTarget(name string, out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	if len(out) == 0 {
		return tensor.Float32, nil, fmt.Errorf("nn: %s: output is a scalar: wants [N, ...]", name)
	}
	return tensor.Float32, out.Clone(), nil
}

// labelTarget is the target of losses over classes: for scores [N, C, d...], labels [N, d...].
func labelTarget(name string, out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	if len(out) < 2 {
		return tensor.Int32, nil, fmt.Errorf("nn: %s: output %s: wants [N, classes, ...]", name, dims(out))
	}
	return tensor.Int32, slices.Concat(out[:1], out[2:]), nil
}

// checkTarget reports a target that is not what l wants for out.
func checkTarget(l Loss, name string, out, target *gorgonia.Node) error {
	if out == nil || target == nil {
		return fmt.Errorf("nn: %s: output or target is nil", name)
	}
	dtype, shape, err := l.Target(out.Shape())
	if err != nil {
		return err
	}
	if target.Dtype() != dtype || !slices.Equal(target.Shape(), shape) {
		return fmt.Errorf("nn: %s: for output %s the target is %v %s, not %v %s", name, dims(out.Shape()), dtype, dims(shape), target.Dtype(), dims(target.Shape()))
	}
	return nil
}

// ClassLossOption changes a loss over classes.
type ClassLossOption interface{ classLoss(*classes) }

// CrossEntropyOption changes a [CrossEntropyLoss].
type CrossEntropyOption interface{ crossEntropy(*CrossEntropyLoss) }

// ElementLossOption changes a loss that compares element by element.
type ElementLossOption interface{ elementLoss(*elements) }

// BCEOption changes a [BCEWithLogitsLoss].
type BCEOption interface{ bce(*BCEWithLogitsLoss) }

// SumReductionOption is what [SumReduction] returns.
type SumReductionOption struct{}

// SumReduction makes a loss the sum over the batch, not the mean.
func SumReduction() SumReductionOption { return SumReductionOption{} }

func (SumReductionOption) classLoss(c *classes)             { c.total = true }
func (SumReductionOption) crossEntropy(l *CrossEntropyLoss) { l.total = true }
func (SumReductionOption) elementLoss(e *elements)          { e.total = true }
func (SumReductionOption) bce(l *BCEWithLogitsLoss)         { l.total = true }

// ClassOption is an option of losses over classes.
type ClassOption func(*classes)

func (o ClassOption) classLoss(c *classes)             { o(c) }
func (o ClassOption) crossEntropy(l *CrossEntropyLoss) { o(&l.classes) }

// IgnoreIndex makes samples with this label count for nothing. Without it, -100.
func IgnoreIndex(label int) ClassOption { return func(c *classes) { c.Ignore = label } }

// ClassWeights gives each class a weight; the mean divides by the weights of the batch's labels.
func ClassWeights(w ...float32) ClassOption {
	return func(c *classes) { c.Weights = slices.Clone(w) }
}

// LabelSmoothingOption is what [LabelSmoothing] returns.
type LabelSmoothingOption float64

// LabelSmoothing mixes the labels with the uniform distribution: 0 is the label alone, 1 the uniform distribution.
func LabelSmoothing(x float64) LabelSmoothingOption { return LabelSmoothingOption(x) }

func (o LabelSmoothingOption) crossEntropy(l *CrossEntropyLoss) { l.Smoothing = float64(o) }

// classes is what losses over classes share.
type classes struct {
	op.Classes
	total bool
}

func newClasses() classes { return classes{Classes: op.Classes{Ignore: -100}} }

// check reports settings that don't go together, for scores of that shape.
func (c *classes) check(name string, out tensor.Shape) error {
	if w := len(c.Weights); c.Weights != nil && w != out[1] {
		return fmt.Errorf("nn: %s: %d class weights for %d classes", name, w, out[1])
	}
	if !(c.Smoothing >= 0 && c.Smoothing <= 1) {
		return fmt.Errorf("nn: %s: label smoothing is %v: it must be in 0..1", name, c.Smoothing)
	}
	return nil
}

// term builds sum and weight.
func (c *classes) term(l Loss, name string, sum func(scores, labels *gorgonia.Node, c op.Classes) (*gorgonia.Node, error), out, target *gorgonia.Node) (Term, error) {
	if err := checkTarget(l, name, out, target); err != nil {
		return Term{}, err
	}
	s, err := sum(out, target, c.Classes)
	if err != nil {
		return Term{}, fmt.Errorf("nn: %s: %w", name, err)
	}
	t := Term{Sum: s, Total: c.total}
	if !c.total {
		if t.Weight, err = op.LabelWeight(target, out.Shape()[1], c.Classes); err != nil {
			return Term{}, fmt.Errorf("nn: %s: %w", name, err)
		}
	}
	return t, nil
}

// CrossEntropyLoss compares logits [N, C, ...] with labels int32 [N, ...]: the mean of -log softmax(logits)[label].
type CrossEntropyLoss struct{ classes }

// CrossEntropy is the loss of classification: softmax and negative log-likelihood in one.
func CrossEntropy(opts ...CrossEntropyOption) *CrossEntropyLoss {
	l := &CrossEntropyLoss{newClasses()}
	for _, o := range opts {
		o.crossEntropy(l)
	}
	return l
}

// Target implements [Loss].
func (l *CrossEntropyLoss) Target(out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	dtype, shape, err := labelTarget("cross entropy", out)
	if err == nil {
		err = l.check("cross entropy", out)
	}
	return dtype, shape, err
}

// Loss implements [Loss].
func (l *CrossEntropyLoss) Loss(g *Graph, out, target *gorgonia.Node) (Term, error) {
	return l.term(l, "cross entropy", op.CrossEntropy, out, target)
}

// NLLLoss compares log-probabilities [N, C, ...] with labels int32 [N, ...]: the mean of -logp[label].
type NLLLoss struct{ classes }

// NLL is the negative log-likelihood, for models that end in LogSoftmax.
func NLL(opts ...ClassLossOption) *NLLLoss {
	l := &NLLLoss{newClasses()}
	for _, o := range opts {
		o.classLoss(&l.classes)
	}
	return l
}

// Target implements [Loss].
func (l *NLLLoss) Target(out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	dtype, shape, err := labelTarget("nll", out)
	if err == nil {
		err = l.check("nll", out)
	}
	return dtype, shape, err
}

// Loss implements [Loss].
func (l *NLLLoss) Loss(g *Graph, out, target *gorgonia.Node) (Term, error) {
	return l.term(l, "nll", op.NLL, out, target)
}

// elements is what losses that compare element by element share.
type elements struct{ total bool }

// term builds sum and weight.
func (e *elements) term(l Loss, name string, sum func(out, target *gorgonia.Node) (*gorgonia.Node, error), out, target *gorgonia.Node) (Term, error) {
	if err := checkTarget(l, name, out, target); err != nil {
		return Term{}, err
	}
	t := Term{Total: e.total}
	var err error
	if t.Sum, err = sum(out, target); err == nil && !e.total {
		t.Weight, err = op.Number(out, float64(sizeOf(out.Shape())))
	}
	if err != nil {
		return Term{}, fmt.Errorf("nn: %s: %w", name, err)
	}
	return t, nil
}

// MSELoss is the mean over elements of (output-target)².
type MSELoss struct{ elements }

// MSE is the mean squared error.
func MSE(opts ...ElementLossOption) *MSELoss {
	l := new(MSELoss)
	for _, o := range opts {
		o.elementLoss(&l.elements)
	}
	return l
}

// Target implements [Loss].
func (l *MSELoss) Target(out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	return sameTarget("mse", out)
}

// Loss implements [Loss].
func (l *MSELoss) Loss(g *Graph, out, target *gorgonia.Node) (Term, error) {
	return l.term(l, "mse", op.SquaredError, out, target)
}

// L1Loss is the mean over elements of |output-target|.
type L1Loss struct{ elements }

// L1 is the mean absolute error.
func L1(opts ...ElementLossOption) *L1Loss {
	l := new(L1Loss)
	for _, o := range opts {
		o.elementLoss(&l.elements)
	}
	return l
}

// Target implements [Loss].
func (l *L1Loss) Target(out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	return sameTarget("l1", out)
}

// Loss implements [Loss].
func (l *L1Loss) Loss(g *Graph, out, target *gorgonia.Node) (Term, error) {
	return l.term(l, "l1", op.AbsoluteError, out, target)
}

// BCEWithLogitsLoss is the mean over elements of the binary cross entropy of sigmoid(output) with targets in 0..1.
type BCEWithLogitsLoss struct {
	elements
	posWeight []float32
}

// BCEWithLogits is the loss of independent yes-or-no outputs.
func BCEWithLogits(opts ...BCEOption) *BCEWithLogitsLoss {
	l := new(BCEWithLogitsLoss)
	for _, o := range opts {
		o.bce(l)
	}
	return l
}

// PosWeightOption is what [PosWeight] returns.
type PosWeightOption []float32

// PosWeight makes positive targets count more: one weight for all outputs, or one for each index of the last dimension.
func PosWeight(w ...float32) PosWeightOption { return slices.Clone(w) }

func (o PosWeightOption) bce(l *BCEWithLogitsLoss) { l.posWeight = o }

// Target implements [Loss].
func (l *BCEWithLogitsLoss) Target(out tensor.Shape) (tensor.Dtype, tensor.Shape, error) {
	return sameTarget("bce with logits", out)
}

// Loss implements [Loss].
func (l *BCEWithLogitsLoss) Loss(g *Graph, out, target *gorgonia.Node) (Term, error) {
	return l.term(l, "bce with logits", func(x, t *gorgonia.Node) (*gorgonia.Node, error) {
		return op.BCEWithLogits(x, t, l.posWeight)
	}, out, target)
}
