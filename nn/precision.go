package nn

import (
	"fmt"
	"slices"
	"strings"
)

// Precision says how products and convolutions round. Parameters, gradients, sums and everything else are float32.
type Precision uint8

// The precisions.
const (
	// FP32 multiplies float32 numbers as they are.
	FP32 Precision = iota
	// TF32 lets cards round the operands of products and convolutions to 10 bits of mantissa, which is several times faster there. The
	// host computes in float32.
	TF32
)

var precisions = []string{"fp32", "tf32"}

// String returns fp32 or tf32.
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
	return 0, fmt.Errorf("nn: no precision %q: use %s", name, strings.Join(precisions, " or "))
}
