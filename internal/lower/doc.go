// Package lower turns a Gorgonia graph into the tensor program of package ir.
//
// [Lower] walks the nodes that the wanted outputs depend on and writes each as calls of ir's builder: one small function a
// Gorgonia op, found in the table rules. It asks its caller for the variables (parameters and batch live in slots that only the
// caller knows) and writes constants itself. Gradients need no rules of their own: gorgonia.Grad has already made them nodes.
//
//	outs, err := lower.Lower(g, gorgonia.Nodes{loss, dw}, func(n *gorgonia.Node) (*ir.Value, error) {
//		return g.Read(slots[n]), nil
//	})
//
// An op of ours implements [Op] and says itself what it means. A Gorgonia op without a rule is an [UnsupportedError], which
// names op and node and what would work. Models are float32: a float64 node is refused.
//
// Lower reads a graph only when it is whole, because Gorgonia rewrites ops while a graph is built (Log turns the SoftMax below
// it into a log-softmax, for everybody who uses that node). Every value carries the name of its node.
//
// # What differs from Gorgonia's machines
//
// Convolutions: Gorgonia writes Conv2d as Im2Col and a matrix product, with gradients to match. The three products are
// recognised and become ir's convolution and its two gradients; the patches are never made.
//
// Dropout: the gradient uses the mask of the forward pass divided by the probability to keep; Gorgonia divides by the
// probability to drop. Evaluation mode (SetTraining(false)) and probability 0 pass values and gradients through.
//
// BatchNorm: in training the batch's own statistics; the op's running statistics are not touched, since a program changes
// nothing but what it stores. In evaluation mode the op's running statistics as they are when Lower is called.
//
// SoftMax of a column [n,1] runs along n, as in Gorgonia, and so does its gradient.
//
// The gradients that Gorgonia derives are lowered as they stand, and some of them are wrong in v0.9.18: those of Log2,
// InverseSqrt and OuterProd. The tests say how.
//
// Gorgonia may also take two nodes for one while a graph is built, because its hashes leave attributes out: random nodes of one
// shape, dropouts of one input with different probabilities. Lower sees one node then, as Gorgonia's machines do.
//
// # Concurrency
//
// Lower only reads the Gorgonia graph and writes the ir.Graph; neither may change meanwhile.
package lower
