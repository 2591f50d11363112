// Package ir is the tensor program between a model and the machines that run it.
//
// It has two levels.
//
// A [Graph] is what lowering builds: values in single-assignment form, each made by one [Op] from others, with static
// shapes. It is pure: reads of a [Slot] see what the slot held when the step began, and stores take effect at its end.
// There are some thirty kinds of op; their meaning, in float64, is package ref.
//
// A [Program] is what a backend compiles: steps in the order in which they run, every operand at a fixed place of a
// [Region]. [Compile] makes one from graphs and collectives by way of the passes, in this order:
//
//	simplify  constants folded, identities removed, equal values shared
//	round     for [Target.Half]: operands of products are rounded to 16 bits
//	layout    for [Traits.ChannelsLast]: images lie with channels last
//	fuse      elementwise chains become loops; reductions and products take in their neighbours
//	schedule  one total order
//	plan      every value gets its place in the work arena, by its lifetime
//
// With [Target.Frugal] schedule and plan look for little memory: values lie in the gradients' arena, too, until the gradient is stored there.
//
// After plan the memory of a program is known to the byte: [Program.Memory].
//
// Elements are float32 ([F32]) or int32 ([I32]); float32 values that 16 bits hold may lie in memory as such ([BF16], [F16]). A value of rank 0 is a scalar. Views (reshape, transpose, slice,
// broadcast) cost nothing: they end as strides of an [Operand].
//
// Set TANDEM_DUMP=ir to see the program after each pass on standard error.
//
// Builders keep the first error and carry on with harmless values, so that lowering code reads like arithmetic; ask
// [Graph.Err] once at the end. A Program is immutable after Compile and may be shared by goroutines; a Graph may not.
package ir
