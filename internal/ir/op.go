package ir

import "slices"

// Op says how a value is made from its arguments. The types below are all there are; backends switch over them.
// Every Op is a plain struct, so two ops are the same computation when they print the same.
type Op interface{ op() }

// Sources: ops without arguments.
type (
	// Read is the content of a slot at the start of the step.
	Read struct{ Slot *Slot }
	// Const is a tensor whose every element is Value.
	Const struct{ Value float64 }
	// Data is a constant tensor of float32 (Floats) or int32 (Ints), row-major.
	Data struct{ Content *Content }
	// Iota holds each element's index along Axis, as float32.
	Iota struct{ Axis int }
	// Rand holds uniform numbers in [0,1) from the counter-based generator: element i of sample s (dimension 0) is word
	// (first + s) * size/shape[0] + i of the Philox stream (key [Runtime.Key], stream Stream), where first is the index of the rank's first sample in the whole
	// batch; see Runtime. The same bits come out on any number of ranks. With ChannelsLast the last dimension counts as the second: the numbers are
	// those of shape [N,C,...], lying as [N,...,C].
	Rand struct {
		Stream       uint64
		ChannelsLast bool
	}
)

// Numbering is by how much an element's number in the stream grows along each dimension of a shape.
func (r Rand) Numbering(shape Shape) []int {
	n := len(shape)
	if !r.ChannelsLast {
		return shape.Strides()
	}
	moved := slices.Concat(shape[:1], shape[n-1:], shape[1:n-1]).Strides() // of [N,C,...]
	return slices.Concat(moved[:1], moved[2:], moved[1:2])
}

// Content is the body of a [Data]. Exactly one field is set.
type Content struct {
	Floats []float32
	Ints   []int32
}

// Elementwise.
type (
	// Map applies Fn to 1, 2 or 3 arguments of one shape; broadcasts are explicit.
	Map struct{ Fn Fn }
	// CheckIndex passes i32 indices through. An element outside 0..Bound-1 that is not Ignore ends the step with an
	// [IndexError] whose What is this What ("label").
	CheckIndex struct {
		Bound, Ignore int
		What          string
	}
)

// Views: no data moves.
type (
	// Reshape keeps the row-major order of elements.
	Reshape struct{}
	// Transpose makes dimension i of the result from dimension Perm[i].
	Transpose struct{ Perm []int }
	// Slice takes Start[i], Start[i]+Step[i], ... below Stop[i] of each dimension i. Steps are positive.
	Slice struct{ Start, Stop, Step []int }
	// Broadcast repeats dimensions of extent 1; the rank stays.
	Broadcast struct{}
)

// Movement.
type (
	// Concat joins its arguments along Axis.
	Concat struct{ Axis int }
	// Unslice is the adjoint of Slice: zeros, with the argument at the places that Slice would take.
	Unslice struct{ Start, Stop, Step []int }
	// Gather takes rows: table [V,D...], indices i32 [I...] -> [I...,D...].
	Gather struct{}
	// ScatterAdd is Gather's adjoint: indices i32 [I...], rows [I...,D...] -> [Rows,D...], rows of one index summed in order.
	ScatterAdd struct{ Rows int }
)

// Reduction names what [Reduce] does.
type Reduction uint8

// The reductions.
const (
	Sum Reduction = iota
	MaxOf
	MinOf
)

// String returns the reduction's name.
func (r Reduction) String() string { return [...]string{"sum", "max", "min"}[r] }

// Reductions and products. Matrix products and convolutions accumulate in float32 or wider.
type (
	// Reduce combines the elements along Axes (ascending), which stay with extent 1.
	Reduce struct {
		Fn   Reduction
		Axes []int
	}
	// ArgMax is the i32 index of the first largest element along Axis, which stays with extent 1.
	ArgMax struct{ Axis int }
	// MatMul is [M,K] x [K,N] -> [M,N], or batched [B,M,K] x [B,K,N] -> [B,M,N]. Transposes are views.
	MatMul struct{}
	// Conv2d is cross-correlation: x [N,C,H,W], w [O,C/G,KH,KW] -> [N,O,OH,OW].
	Conv2d struct{ Conv Window }
	// Conv2dGradX is Conv2d's gradient by x: w, dy -> dx, whose shape is In.
	Conv2dGradX struct {
		Conv Window
		In   [4]int
	}
	// Conv2dGradW is Conv2d's gradient by w: x, dy -> dw [O,C/G,KH,KW].
	Conv2dGradW struct{ Conv Window }
)

// Window is the geometry of a 2-d convolution or pooling: height, then width. With ChannelsLast the op's shapes, arguments and results are
// [N,H,W,C] where they else are [N,C,H,W], and its filters [O,KH,KW,C/G]; the pass in layout.go makes such ops.
type Window struct {
	Kernel, Stride, Padding, Dilation [2]int
	Groups                            int // convolutions only; at least 1
	ChannelsLast                      bool
}

// ToNCHW gives the shape of an image, or of filters, in the order [N,C,H,W], whichever the window's is.
func (w Window) ToNCHW(s [4]int) [4]int {
	if w.ChannelsLast {
		return [4]int{s[0], s[3], s[1], s[2]}
	}
	return s
}

// FromNCHW is the inverse of ToNCHW.
func (w Window) FromNCHW(s [4]int) [4]int {
	if w.ChannelsLast {
		return [4]int{s[0], s[2], s[3], s[1]}
	}
	return s
}

// Channels is the axis of an image's channels.
func (w Window) Channels() int {
	if w.ChannelsLast {
		return 3
	}
	return 1
}

// Height is the axis of an image's height, before that of its width.
func (w Window) Height() int {
	if w.ChannelsLast {
		return 1
	}
	return 2
}

// Out returns the output extent for an input extent along dimension d (0 height, 1 width):
// floor((in + 2 padding - dilation (kernel-1) - 1) / stride) + 1, which is below 1 when the window does not fit.
func (w Window) Out(d, in int) int {
	n := in + 2*w.Padding[d] - w.Dilation[d]*(w.Kernel[d]-1) - 1
	if n < 0 {
		return 0
	}
	return n/w.Stride[d] + 1
}

// Places reports whether [PoolPlaces] takes the window for so many channels.
func (w Window) Places(channels int) bool {
	const most = 1 << 8 // elements that a byte tells from each other
	return w.ChannelsLast && w.Padding == [2]int{} && w.Kernel[0]*w.Kernel[1] <= most && channels%4 == 0
}

// PoolMode names a pooling.
type PoolMode uint8

// The poolings.
const (
	MaxPool         PoolMode = iota // padding counts as -inf; ties go to the first in row-major order
	AvgPool                         // padding counts as zeros in sum and divisor
	AvgPoolNoPad                    // the divisor counts real elements only
	AdaptiveAvgPool                 // windows floor(i*in/out) .. ceil((i+1)*in/out)-1; Window unused
)

// String returns the mode's name.
func (m PoolMode) String() string {
	return [...]string{"max", "avg", "avg_nopad", "adaptive_avg"}[m]
}

// Windows, rows, losses.
type (
	// Pool2d is x [N,C,H,W] -> [N,C,OH,OW]. OutHW is set for AdaptiveAvgPool only.
	Pool2d struct {
		Mode  PoolMode
		Pool  Window
		OutHW [2]int
	}
	// PoolPlaces is where in each window of a MaxPool its first largest element is, or its first NaN, counted row-major: a byte each, four channels
	// a word, the first in the lowest byte: x [N,H,W,C] -> i32 [N,OH,OW,C/4]. The window has its channels last and no padding.
	PoolPlaces struct{ Pool Window }
	// Pool2dGrad is Pool2d's gradient. MaxPool: x, dy -> dx, the places found again from x; or, if Placed, places, dy -> dx of shape In. Others:
	// dy -> dx of shape In.
	Pool2dGrad struct {
		Mode   PoolMode
		Pool   Window
		OutHW  [2]int
		In     [4]int
		Placed bool
	}
	// Softmax normalises along the last dimension; Log gives its logarithm.
	Softmax struct{ Log bool }
	// SoftmaxGrad is Softmax's gradient from its output: y, dy -> dx.
	SoftmaxGrad struct{ Log bool }
	// CrossEntropy is, per row n of logits [N,C] with labels i32 [N] and class weights w [C], the loss [N]
	//
	//	-(1-Smoothing) w[y] log p[y] - Smoothing/C sum_c w[c] log p[c],  p = softmax(logits[n])
	//
	// and 0 where the label is Ignore. Labels have passed a CheckIndex of the same bound.
	CrossEntropy struct {
		Smoothing float64
		Ignore    int
	}
	// CrossEntropyGrad is CrossEntropy's gradient by the logits: logits, labels, weights, dloss [N] -> [N,C].
	CrossEntropyGrad struct {
		Smoothing float64
		Ignore    int
	}
)

// AllReduceSum adds a value up over ranks, in rank order; every rank gets the sum. The ranks are those that have samples in
// this step, or all when All is set. It stands in the middle of a graph (synchronised statistics, the norm of sharded
// gradients); the reduction of gradients is a [Collective] between graphs.
type AllReduceSum struct{ All bool }

func (Read) op()             {}
func (Const) op()            {}
func (Data) op()             {}
func (Iota) op()             {}
func (Rand) op()             {}
func (Map) op()              {}
func (CheckIndex) op()       {}
func (Reshape) op()          {}
func (Transpose) op()        {}
func (Slice) op()            {}
func (Broadcast) op()        {}
func (Concat) op()           {}
func (Unslice) op()          {}
func (Gather) op()           {}
func (ScatterAdd) op()       {}
func (Reduce) op()           {}
func (ArgMax) op()           {}
func (MatMul) op()           {}
func (Conv2d) op()           {}
func (Conv2dGradX) op()      {}
func (Conv2dGradW) op()      {}
func (Pool2d) op()           {}
func (PoolPlaces) op()       {}
func (Pool2dGrad) op()       {}
func (Softmax) op()          {}
func (SoftmaxGrad) op()      {}
func (CrossEntropy) op()     {}
func (CrossEntropyGrad) op() {}
func (AllReduceSum) op()     {}
