// Package op holds the Gorgonia ops that package nn's layers and losses are made of.
//
// Each function takes nodes and adds one node to their graph, like the functions of package gorgonia, and mixes with them
// freely. The difference is inside: an op here is written once, as a small tensor program, and that program is
//
//   - what a compiled model consists of (package lower finds it through [Op.Lower]);
//   - what gives the result its shape, and checks the arguments, when the node is made;
//   - what [Op.Do] runs, alone, when the graph is given to one of Gorgonia's own machines, as tests do to have a reference.
//
// Gradients are ops, too: [Op.SymDiff] adds them when gorgonia.Grad asks. They may compute again what the forward op has
// computed, because equal values are shared when a graph is compiled.
//
// Values are float32, labels and indices int32; anything else is refused by name when the node is made. An op is identified
// by the text of its kind with every attribute and the shapes it takes, which is also what it adds to Gorgonia's hashes.
//
// Random ops ([Dropout]) draw from the stream that they are given; on Gorgonia's machines the seed is 0 and the step never
// advances. Sums over ranks are the rank's own there.
//
// Building is for one goroutine a graph. Do may be called by any number of goroutines; calls take turns.
package op
