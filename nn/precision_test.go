package nn_test

import (
	"testing"

	"github.com/tandem-train/tandem/nn"
)

func TestPrecisionNames(t *testing.T) {
	for _, p := range []nn.Precision{nn.FP32, nn.TF32, nn.BF16, nn.FP16} {
		if got, err := nn.ParsePrecision(p.String()); err != nil || got != p {
			t.Errorf("%v is parsed as %v, %v", p, got, err)
		}
	}
	for _, name := range []string{"", "FP32", "fp64"} {
		if _, err := nn.ParsePrecision(name); err == nil {
			t.Errorf("%q is a precision", name)
		}
	}
	if s := nn.Precision(9).String(); s != "Precision(9)" {
		t.Errorf("precision 9 is %q", s)
	}
}
