package op

import (
	"context"
	"fmt"
	"sync"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/host"
	"github.com/tandem-train/tandem/internal/ir"
)

// machine runs single ops for Gorgonia's machines: one thread, one op at a time.
var machine = sync.OnceValue(func() ir.Device { return host.Open(1) })

// running is held while machine works.
var running sync.Mutex

// program is an op compiled alone.
type program struct {
	p   *ir.Program
	mem [ir.NumRegions]ir.DeviceMemory
	exe ir.Executable
	out *ir.Slot
}

func (o *Op) compile() (*program, error) {
	g, y := o.graph()
	pr := &program{out: &ir.Slot{Region: ir.Output, Name: "y", Shape: y.Shape, DType: y.DType}}
	g.Store(pr.out, y)
	var err error
	if pr.p, err = ir.Compile(o.text, [ir.NumRegions]int{}, ir.Target{}, ir.Part{Graph: g}); err != nil {
		return nil, err
	}
	for r := range ir.NumRegions {
		if n := pr.p.Bytes(r); n > 0 {
			if pr.mem[r], err = machine().Alloc(n); err != nil {
				return nil, err
			}
		}
	}
	pr.exe, err = machine().Load(pr.p, pr.mem)
	return pr, err
}

// Do runs the op on values.
func (o *Op) Do(vals ...gorgonia.Value) (gorgonia.Value, error) {
	v, err := o.do(vals)
	if err != nil {
		return nil, fmt.Errorf("op: %s: %w", o.text, err)
	}
	return v, nil
}

func (o *Op) do(vals []gorgonia.Value) (gorgonia.Value, error) {
	if len(vals) != len(o.in) {
		return nil, fmt.Errorf("takes %d arguments, not %d", len(o.in), len(vals))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	running.Lock()
	defer running.Unlock()
	if o.alone == nil {
		pr, err := o.compile()
		if err != nil {
			return nil, err
		}
		o.alone = pr
	}
	pr := o.alone
	var off int64
	for i, v := range vals {
		b, err := bytesOf(v, o.in[i])
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		if pr.reads(ir.Input) {
			n := min(int64(len(b)), max(0, pr.p.Bytes(ir.Input)-off))
			if err := pr.mem[ir.Input].Write(off, b[:n]); err != nil {
				return nil, err
			}
		}
		for _, c := range pr.p.Checks {
			if int64(c.Slot.Offset)*4 == off && len(b) > 0 {
				if err := c.Verify(ir.Words[int32](b)); err != nil {
					return nil, err
				}
			}
		}
		off += int64(len(b))
	}
	if err := pr.exe.Run(context.Background(), new(ir.Runtime)); err != nil {
		return nil, err
	}
	return o.result(pr)
}

// reads reports whether the program has memory in region r.
func (pr *program) reads(r ir.Region) bool { return pr.mem[r] != nil }

// bytesOf returns the elements of v, row-major.
func bytesOf(v gorgonia.Value, want arg) ([]byte, error) {
	if t, ok := v.(*tensor.Dense); ok && t.RequiresIterator() {
		v = t.Materialize().(*tensor.Dense)
	}
	n := want.shape.Size()
	switch d := v.Data().(type) {
	case []float32:
		if want.dtype == ir.F32 && len(d) >= n {
			return ir.Bytes(d[:n]), nil
		}
	case float32:
		if want.dtype == ir.F32 && n == 1 {
			return ir.Bytes([]float32{d}), nil
		}
	case []int32:
		if want.dtype == ir.I32 && len(d) >= n {
			return ir.Bytes(d[:n]), nil
		}
	case int32:
		if want.dtype == ir.I32 && n == 1 {
			return ir.Bytes([]int32{d}), nil
		}
	}
	return nil, fmt.Errorf("%v %v, not %s%s", v.Dtype(), v.Shape(), want.dtype, want.shape)
}

// result copies the output into a new value.
func (o *Op) result(pr *program) (gorgonia.Value, error) {
	if pr.out.DType == ir.I32 {
		x := make([]int32, o.out.Size())
		if err := pr.mem[ir.Output].Read(0, ir.Bytes(x)); err != nil {
			return nil, err
		}
		if len(o.out) == 0 {
			return gorgonia.NewI32(x[0]), nil
		}
		return tensor.New(tensor.WithShape(o.out...), tensor.WithBacking(x)), nil
	}
	x := make([]float32, o.out.Size())
	if err := pr.mem[ir.Output].Read(0, ir.Bytes(x)); err != nil {
		return nil, err
	}
	if len(o.out) == 0 {
		return gorgonia.NewF32(x[0]), nil
	}
	return tensor.New(tensor.WithShape(o.out...), tensor.WithBacking(x)), nil
}
