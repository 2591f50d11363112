// Package nn describes models: modules, losses, optimizers, schedules. Training is package dp's business.
//
//	model := nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
//
// # Modules
//
// A [Module] adds its computation to a [Graph], which wraps a Gorgonia graph. The layers of this package and structs of yours
// are modules alike, and Gorgonia's functions may stand between them. A model is written once, without a batch size: it is traced anew for
// every input shape, in training and in evaluation mode. Layers, their defaults, first values, parameter names and shapes are
// PyTorch's, so that numbers and state dicts can be compared.
//
// Layers are made with functions that take sizes and options. An option goes with the layers and optimizers that it makes
// sense for, and the compiler refuses it elsewhere. Constructors don't fail: an impossible size or setting is an error of the
// layer's Forward (and of an optimizer's, schedule's or clip's Validate), which names layer and value.
//
// # Parameters
//
// A [Parameter] is made with its shape; [Initialize], [LoadStateDict] or [LoadSafetensors] give it its value.
// [NamedParameters] finds the parameters of a model in its exported fields. One that is used twice is one node, with one
// summed gradient. A [Buffer] is what a model keeps without training it.
//
// # Losses and optimizers
//
// A [Loss] gives a sum and a weight rather than a mean, so that any split of a batch gives the loss and the gradients of the
// whole. A function of yours becomes one as a [LossFunc]. An [Optimizer] says how one flat vector of parameters changes; a
// [Schedule] what the learning rate is at a step; a [Clip] how gradients are bounded before.
//
// # Compiling
//
// A [Compiler] traces a model and its loss, differentiates with gorgonia.Grad, and lowers the result to the tensor programs
// that host and cards run.
//
// # Errors and goroutines
//
// Errors begin with "nn:" and name the layer, parameter or setting. [*StateError] lists what of a state dict doesn't fit; a label outside the classes is found when a program runs.
//
// Building and changing a model is for one goroutine. Models that are not being changed may be read by many.
package nn
