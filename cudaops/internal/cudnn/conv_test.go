package cudnn

import (
	"testing"
	"unsafe"

	"github.com/tandem-train/tandem/internal/ir"
)

func TestSizes(t *testing.T) {
	var p performance
	for name, at := range map[string][2]uintptr{
		"whole": {unsafe.Sizeof(p), 48}, "memory": {unsafe.Offsetof(p.memory), 16}, "determinism": {unsafe.Offsetof(p.determinism), 24}, "math": {unsafe.Offsetof(p.math), 28},
	} {
		if at[0] != at[1] {
			t.Errorf("%s: %d, not %d", name, at[0], at[1])
		}
	}
}

func TestOperands(t *testing.T) {
	for kind, want := range map[Kind]string{Forward: "xwy", GradX: "wyx", GradW: "xyw"} {
		a, b, out := operands(kind, "x", "w", "y")
		if got := a + b + out; got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}

// conv is a convolution whose result's shape follows from the rest.
func conv(kind Kind, x, w [4]int, stride, padding, dilation [2]int, groups int) Conv {
	c := Conv{X: x, W: w, Kind: kind, Window: ir.Window{Kernel: [2]int{w[2], w[3]}, Stride: stride, Padding: padding, Dilation: dilation, Groups: groups}}
	c.Y = [4]int{x[0], w[0], c.Window.Out(0, x[2]), c.Window.Out(1, x[3])}
	return c
}

func small(kind Kind) Conv {
	return conv(kind, [4]int{2, 4, 9, 11}, [4]int{6, 2, 3, 5}, [2]int{2, 1}, [2]int{1, 3}, [2]int{1, 2}, 2)
}

func TestImpossible(t *testing.T) {
	if err := small(GradX).check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(c *Conv){
		"no groups": func(c *Conv) { c.Window.Groups = 0 },
		"stride":    func(c *Conv) { c.Window.Stride[1] = 0 },
		"dilation":  func(c *Conv) { c.Window.Dilation[0] = 0 },
		"padding":   func(c *Conv) { c.Window.Padding[0] = -1 },
		"kernel":    func(c *Conv) { c.Window.Kernel[0]++ },
		"channels":  func(c *Conv) { c.X[1]++ },
		"kernels":   func(c *Conv) { c.W[0]++ },
		"result":    func(c *Conv) { c.Y[3]++ },
		"does not fit": func(c *Conv) {
			*c = conv(Forward, [4]int{1, 1, 2, 2}, [4]int{1, 1, 3, 3}, [2]int{1, 1}, [2]int{}, [2]int{1, 1}, 1)
		},
		"empty":          func(c *Conv) { c.X[0], c.Y[0] = 0, 0 },
		"gradient, bias": func(c *Conv) { c.Bias = true },
		"gradient, ReLU": func(c *Conv) { c.Relu = true },
	} {
		c := small(GradX)
		change(&c)
		if c.check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
