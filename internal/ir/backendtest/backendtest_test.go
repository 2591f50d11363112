package backendtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/backendtest"
)

// again is for tests that run the suite once more.
func again(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the suite runs once in short tests")
	}
}

func TestInterpreter(t *testing.T) {
	backendtest.Run(t, func(*testing.T) ir.Device { return interpreter{} })
}

// TestChannelsLast: the interpreter knows no TF32, so the pass for channels last must leave all numbers as they were.
func TestChannelsLast(t *testing.T) {
	again(t)
	target := ir.Target{TF32: true, Traits: ir.Traits{ChannelsLast: true}}
	backendtest.Run(t, func(*testing.T) ir.Device { return interpreter{} }, backendtest.For(target))
}

// TestFrugal: other orders and places leave all numbers as they were.
func TestFrugal(t *testing.T) {
	backendtest.Run(t, func(*testing.T) ir.Device { return interpreter{} }, backendtest.For(ir.Target{Frugal: true}), backendtest.Only("program"))
}

// Where values lie as halves, and channels last.
func TestHalves(t *testing.T) {
	again(t)
	target := ir.Target{Traits: ir.Traits{Halves: true, ChannelsLast: true}}
	backendtest.Run(t, func(*testing.T) ir.Device { return interpreter{} }, backendtest.For(target), backendtest.Only("half"))
}

// thrifty recomputes all that it can.
type thrifty struct{ interpreter }

func (d thrifty) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	q := ir.Recompute(p, 0)
	if err := q.Verify(); err != nil {
		return nil, err
	}
	if q.Size[ir.Work] > p.Size[ir.Work] {
		return nil, fmt.Errorf("%d words between steps in place of %d", q.Size[ir.Work], p.Size[ir.Work])
	}
	return d.interpreter.Load(q, mem)
}

// TestRecompute: a program that recomputes leaves what one that does not leaves.
func TestRecompute(t *testing.T) {
	again(t)
	for _, group := range []string{"program", "random", "ranks"} {
		backendtest.Run(t, func(*testing.T) ir.Device { return thrifty{} }, backendtest.Only(group))
	}
}

// A suite that never fails is worth nothing: the interpreter makes a mistake, in a process of its own, and the suite must
// say what is wrong.
func TestSuiteNotices(t *testing.T) {
	for _, c := range []struct{ mistake, run, want string }{
		{"bias", "op/matmul_with_epilogue", "off by"},
		{"rounding", "op/matmul_plain", "off by"},
		{"nan", "op/conv_1x1", "got NaN"},
		{"overrun", "op/softmax", "input+0: written"},
	} {
		t.Run(c.mistake, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestInterpreter$/"+c.run+"$")
			cmd.Env = append(os.Environ(), "BREAK="+c.mistake)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the suite passes:\n%s", out)
			}
			if !strings.Contains(string(out), c.want) {
				t.Errorf("the report does not say %q:\n%s", c.want, out)
			}
		})
	}
}
