package nn

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

// Precision says how products and convolutions round. Parameters, the optimizer's state and all sums are float32 whatever it is.
//
// In BF16 and FP16 the operands of products and convolutions are rounded to 16 bits, and so are the results from which another one follows,
// the activations and their gradients. Softmax, losses, norms and updates stay float32. On cards the rounded numbers lie in memory as 16
// bits. The host, and simulated cards, round to the same numbers and compute on them in float32: that is for trying out what a precision does
// to a model, and not faster.
type Precision uint8

// The precisions.
const (
	// FP32 multiplies float32 numbers as they are.
	FP32 Precision = iota
	// TF32 lets cards shorten the operands of products and convolutions to 10 bits of mantissa, which is several times faster there. The
	// host computes in float32.
	TF32
	// BF16 rounds to bfloat16: 8 bits of mantissa, and the range of float32. Gradients of parameters are rounded, too, as in PyTorch, once they are summed
	// up over a rank's share of a batch, where there is one rank, or where there are two, which add theirs in float32, and gradients are many. With more
	// ranks, or micro-batches, more is added to them, and they are float32.
	BF16
	// FP16 rounds to float16: 11 bits of mantissa, and numbers from 6e-8 to 65504. Gradients are smaller than that, often, so the loss
	// is scaled up for them, by what keeps them finite; steps in which it does not are skipped, and counted (see SkippedSteps of package dp).
	// For schedules and Adam's corrections they are steps like others.
	FP16
)

var precisions = []string{"fp32", "tf32", "bf16", "fp16"}

// String returns fp32, tf32, bf16 or fp16.
func (p Precision) String() string {
	if int(p) >= len(precisions) {
		return fmt.Sprintf("Precision(%d)", int(p))
	}
	return precisions[p]
}

// ParsePrecision is the inverse of String.
func ParsePrecision(name string) (Precision, error) {
	if i := slices.Index(precisions, name); i >= 0 {
		return Precision(i), nil
	}
	return 0, fmt.Errorf("nn: no precision %q: use one of %s", name, strings.Join(precisions, ", "))
}

// Half is the 16-bit type that the precision rounds to, if it does.
func (p Precision) Half() (t ir.DType, ok bool) {
	switch p {
	case BF16:
		return ir.BF16, true
	case FP16:
		return ir.F16, true
	}
	return ir.F32, false
}

// Target is what programs of the precision are compiled for, on a device of those traits.
func (p Precision) Target(traits ir.Traits) ir.Target {
	half, _ := p.Half()
	return ir.Target{TF32: p == TF32, Half: half, Traits: traits}
}
