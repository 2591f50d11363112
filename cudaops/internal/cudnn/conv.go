package cudnn

import (
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
)

// Kind is what is computed of a convolution.
type Kind uint8

// The kinds.
const (
	Forward Kind = iota // y of x and w
	GradX               // the gradient by x, of w and dy
	GradW               // the gradient by w, of x and dy
)

// String returns the kind's name.
func (k Kind) String() string { return [...]string{"forward", "gradient by x", "gradient by w"}[k] }

// dataTypes are the types that tensors have, by the library's names.
var dataTypes = map[ir.DType]int32{ir.F32: dataFloat, ir.BF16: dataBFloat16, ir.F16: dataHalf}

// Conv is a cross-correlation, or a gradient of it. Tensors are packed: x [N,C,H,W], w [O,C/Groups,KH,KW], y [N,O,OH,OW].
type Conv struct {
	X, W, Y [4]int
	Window  ir.Window
	Kind    Kind
	Type    ir.DType // of all three and the bias: F32 or a half. Whatever it is, sums are in float32
	NHWC    bool     // in memory the channels of all three are last; the shapes are given in the order above all the same
	Bias    bool     // Forward: a vector of O is added to the channels,
	Relu    bool     // then what is negative becomes 0
	TF32    bool     // float32 inputs may be rounded to 10 bits of mantissa, which is some ten times as fast
	Room    int64    // the most workspace that it may need, if that is less than the handle's MaxWorkspace; 0: as much as that
}

// String describes all of the convolution: it is what is remembered of.
func (c Conv) String() string {
	w := c.Window
	return fmt.Sprintf("%s x %v w %v y %v %s %s stride %v padding %v dilation %v groups %d bias %t relu %t tf32 %t",
		c.Kind, c.X, c.W, c.Y, c.Type, [...]string{formatNCHW: "nchw", formatNHWC: "nhwc"}[c.format()], w.Stride, w.Padding, w.Dilation, w.Groups, c.Bias, c.Relu, c.TF32)
}

// rounds reports whether inputs have few enough bits for tensor cores.
func (c Conv) rounds() bool { return c.TF32 || c.Type != ir.F32 }

// format is the library's name of the layout.
func (c Conv) format() int32 {
	if c.NHWC {
		return formatNHWC
	}
	return formatNCHW
}

// check says what is wrong with a convolution.
func (c Conv) check() error {
	w := c.Window
	if c.Type == ir.I32 {
		return errors.New("tensors of i32")
	}
	if w.Groups < 1 || w.Stride[0] < 1 || w.Stride[1] < 1 || w.Dilation[0] < 1 || w.Dilation[1] < 1 || w.Padding[0] < 0 || w.Padding[1] < 0 {
		return fmt.Errorf("window %+v", w)
	}
	if kernel := [2]int{c.W[2], c.W[3]}; kernel != w.Kernel {
		return fmt.Errorf("a window of %v for kernels of %v", w.Kernel, kernel)
	}
	if c.X[1] != c.W[1]*w.Groups || c.W[0]%w.Groups != 0 {
		return fmt.Errorf("%d channels and %d kernels of %d channels in %d groups", c.X[1], c.W[0], c.W[1], w.Groups)
	}
	if y := [4]int{c.X[0], c.W[0], w.Out(0, c.X[2]), w.Out(1, c.X[3])}; y != c.Y || min(y[0], y[1], y[2], y[3]) < 1 {
		return fmt.Errorf("results of %v, where they are of %v", c.Y, y)
	}
	if c.Kind != Forward && (c.Bias || c.Relu) {
		return errors.New("a gradient with bias or ReLU")
	}
	return nil
}

// operands orders three things of x, w and y as the library wants them: two that are read, then the result.
func operands[T any](k Kind, x, w, y T) (in0, in1, out T) {
	switch k {
	case GradX:
		return w, y, x
	case GradW:
		return x, y, w
	}
	return x, w, y
}
