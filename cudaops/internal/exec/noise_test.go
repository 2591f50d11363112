package exec_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/cardtest"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// TestNoise: memory is filled to its end and no further, with numbers of a normal size whatever their type, and rows do not repeat.
func TestNoise(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{64}}) {
		return
	}
	b := cardtest.Open(t)
	for _, words := range []int{0, 1, 100, 262139, 262140, 3<<20 + 1} {
		at := b.New(cardtest.Poison(words+1), 0)
		if err := exec.Noise(b.Card, at, 4*words); err != nil {
			t.Fatal(err)
		}
		x := b.Get(at, words+1)
		if !math.IsNaN(float64(x[words])) {
			t.Errorf("%d words: what comes after them is %v", words, x[words])
		}
		x = x[:words]
		for i, f := range x {
			high, low := math.Float32bits(f)>>16, math.Float32bits(f)&0xffff
			for _, half := range [...]uint32{high, low} {
				if size := math.Abs(float64(math.Float32frombits(half << 16))); !(size > 1e-9 && size < 8) {
					t.Fatalf("%d words: word %d is %#x", words, i, math.Float32bits(f))
				}
			}
		}
		const row = 4096
		for i := row; i+row <= words; i += row {
			if slices.Equal(x[:row], x[i:i+row]) {
				t.Errorf("%d words: row %d repeats the first", words, i/row)
			}
		}
	}
}

// TestMeasuredOn: what is measured reads parameters as they are, and of heavy work noise; it overwrites nothing but work memory.
func TestMeasuredOn(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{64}}) {
		return
	}
	b := cardtest.Open(t)
	ones := slices.Repeat([]float32{1}, 16)
	for _, c := range []struct {
		a, b, out ir.Region
		heavy     bool
		same      [2]bool // operands as the program has them
	}{
		{ir.Work, ir.Params, ir.Grads, false, [2]bool{true, true}},
		{ir.Input, ir.Params, ir.Work, false, [2]bool{true, true}},
		{ir.Work, ir.Params, ir.Grads, true, [2]bool{false, true}},
		{ir.Input, ir.Params, ir.Work, true, [2]bool{false, true}},
		{ir.Grads, ir.Input, ir.State, true, [2]bool{false, false}},
	} {
		operands, stays, err := exec.Measured(b, c.a, c.b, c.out, c.heavy)
		if err != nil {
			t.Fatal(err)
		}
		for i, same := range c.same {
			if slices.Equal(operands[i], ones) != same {
				t.Errorf("%+v: operand %d is %v", c, i, operands[i])
			}
		}
		for r, x := range stays {
			if r != ir.Work && !slices.Equal(x, ones) {
				t.Errorf("%+v: region %s is overwritten", c, r)
			}
		}
	}
}
