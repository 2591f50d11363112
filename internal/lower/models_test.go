package lower_test

import (
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// dense is x w + b.
func dense(b *build, x node, name string, in, out int) node {
	y := b.must(gorgonia.Mul(x, b.v(name+".w", -0.5, 0.5, in, out)))
	return b.must(gorgonia.BroadcastAdd(y, b.v(name+".b", -0.1, 0.1, out), nil, []byte{0}))
}

// oneHotLoss is the mean cross entropy with the classes labels[i] = i mod classes.
func oneHotLoss(b *build, logits node) node {
	batch, classes := logits.Shape()[0], logits.Shape()[1]
	hot := make([]float32, batch*classes)
	for i := range batch {
		hot[i*classes+i%classes] = 1
	}
	t := tensor.New(tensor.WithShape(batch, classes), tensor.WithBacking(hot))
	if b.dt == tensor.Float64 {
		wide := make([]float64, len(hot))
		for i := range hot {
			wide[i] = float64(hot[i])
		}
		t = tensor.New(tensor.WithShape(batch, classes), tensor.WithBacking(wide))
	}
	logp := b.must(gorgonia.Log(b.must(gorgonia.SoftMax(logits))))
	picked := b.must(gorgonia.HadamardProd(logp, gorgonia.NewConstant(t, gorgonia.WithName("labels"))))
	return b.must(gorgonia.Neg(b.must(gorgonia.Mean(b.must(gorgonia.Sum(picked, 1))))))
}

func linearRegression(b *build) node {
	y := b.must(gorgonia.Mul(b.fixed("x", -1, 1, 6, 3), b.v("w", -1, 1, 3)))
	y = b.must(gorgonia.Add(y, b.v("b", 0, 1)))
	diff := b.must(gorgonia.Sub(y, b.fixed("y", -1, 1, 6)))
	return b.must(gorgonia.Mean(b.must(gorgonia.Square(diff))))
}

func logisticRegression(b *build) node {
	return oneHotLoss(b, dense(b, b.fixed("x", -1, 1, 6, 5), "out", 5, 3))
}

func mlp(b *build) node {
	h := b.must(gorgonia.Rectify(dense(b, b.fixed("x", -1, 1, 6, 5), "one", 5, 7)))
	h = b.must(gorgonia.Tanh(dense(b, h, "two", 7, 4)))
	return oneHotLoss(b, dense(b, h, "three", 4, 3))
}

func lenet(b *build) node {
	conv := func(x node, name string, in, out int) node {
		w := b.v(name, -0.5, 0.5, out, in, 3, 3)
		y := b.must(gorgonia.Rectify(b.must(gorgonia.Conv2d(x, w, tensor.Shape{3, 3}, sh(1, 1), sh(1, 1), sh(1, 1)))))
		return b.must(gorgonia.MaxPool2D(y, tensor.Shape{2, 2}, sh(0, 0), sh(2, 2)))
	}
	x := conv(conv(b.fixed("x", -1, 1, 4, 1, 8, 8), "conv1", 1, 3), "conv2", 3, 5)
	flat := b.must(gorgonia.Reshape(x, tensor.Shape{4, 20}))
	return oneHotLoss(b, dense(b, b.must(gorgonia.Rectify(dense(b, flat, "fc1", 20, 8))), "fc2", 8, 3))
}

// TestModels trains nothing: a step's loss and gradients are those of Gorgonia's machine.
func TestModels(t *testing.T) {
	for _, c := range []opCase{
		{name: "linear regression", f: linearRegression},
		{name: "logistic regression", f: logisticRegression},
		{name: "mlp", f: mlp, noDiff: true},
		{name: "lenet", f: lenet, noDiff: true},
	} {
		t.Run(c.name, c.check)
	}
}

// TestConvolutionsAreRecognised counts what becomes of two convolutions and their gradients: no patches, no more than one
// convolution a product.
func TestConvolutionsAreRecognised(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	grads, err := gorgonia.Grad(lenet(b), b.wrt...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := b.lower(grads)
	if err != nil {
		t.Fatal(err)
	}
	var conv, gradX, gradW int
	for _, v := range l.g.Values {
		switch v.Op.(type) {
		case ir.Conv2d:
			conv++
		case ir.Conv2dGradX:
			gradX++
		case ir.Conv2dGradW:
			gradW++
		case ir.Concat, ir.Unslice:
			t.Errorf("patches were made: %T of %s", v.Op, v.Name)
		}
	}
	// The first image is no parameter, so it has no gradient.
	if conv != 2 || gradX != 1 || gradW != 2 {
		t.Errorf("%d convolutions, %d and %d gradients by image and filters, not 2, 1 and 2", conv, gradX, gradW)
	}
}
