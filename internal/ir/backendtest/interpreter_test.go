package backendtest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/backendtest"
	"github.com/tandem-train/tandem/internal/ir/ref"
	"github.com/tandem-train/tandem/internal/philox"
)

// interpreter is the plainest device: it follows a program element by element. The suite is tested on it, and package ir's
// passes with it, without any backend. BREAK names a mistake for it to make; see TestSuiteNotices.
type interpreter struct{}

func (interpreter) ID() int        { return -1 }
func (interpreter) String() string { return "interpreter" }
func (interpreter) Close() error   { return nil }

func (interpreter) Traits() ir.Traits { return ir.Traits{ChannelsLast: true} }

func (interpreter) Alloc(n int64) (ir.DeviceMemory, error) {
	if n < 0 {
		return nil, errors.New("interpreter: negative size")
	}
	m := make(memory, n)
	return &m, nil
}

func (interpreter) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	e := &executable{p: p}
	for r := range mem {
		if p.Size[r] == 0 {
			continue
		}
		m, ok := mem[r].(*memory)
		if !ok || m.Len() < p.Bytes(ir.Region(r)) {
			return nil, fmt.Errorf("interpreter: %s is too small", ir.Region(r))
		}
		e.mem[r] = *m
	}
	for i, w := range p.Consts {
		binary.NativeEndian.PutUint32(e.mem[ir.Consts][4*i:], w)
	}
	return e, nil
}

type memory []byte

var errRange = errors.New("interpreter: out of range")

func (m *memory) Len() int64   { return int64(len(*m)) }
func (m *memory) Host() []byte { return *m }
func (m *memory) Free() error  { return nil }

func (m *memory) Write(off int64, src []byte) error {
	if off < 0 || off > m.Len()-int64(len(src)) {
		return errRange
	}
	copy((*m)[off:], src)
	return nil
}

func (m *memory) Read(off int64, dst []byte) error {
	if off < 0 || off > m.Len()-int64(len(dst)) {
		return errRange
	}
	copy(dst, (*m)[off:])
	return nil
}

func (m *memory) Clear() error {
	clear(*m)
	return nil
}

type executable struct {
	p   *ir.Program
	mem [ir.NumRegions]memory
	ctx context.Context
	rt  *ir.Runtime
}

func (e *executable) Close() error { return nil }

func (e *executable) Run(ctx context.Context, rt *ir.Runtime) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.ctx, e.rt = ctx, rt
	old := e.mem
	for r := range old {
		old[r] = append(memory(nil), e.mem[r]...)
	}
	for i := range e.p.Steps {
		if err := e.step(&e.p.Steps[i]); err != nil {
			for r := range old {
				copy(e.mem[r], old[r])
			}
			return err
		}
	}
	return nil
}

// elements calls f with each index of the shape, in row-major order.
func elements(shape ir.Shape, f func(at []int)) {
	at := make([]int, len(shape))
	for i := range shape.Size() {
		for d, n := len(shape)-1, i; d >= 0; d-- {
			at[d] = n % shape[d]
			n /= shape[d]
		}
		f(at)
	}
}

func (e *executable) word(o ir.Operand, at []int) []byte {
	off := o.Offset
	for d, i := range at {
		off += i * o.Strides[d]
	}
	return e.mem[o.Region][o.DType.Size()*off:]
}

func (e *executable) load(o ir.Operand, at []int) float64 {
	b := e.word(o, at)
	switch o.DType {
	case ir.I32:
		return float64(int32(binary.NativeEndian.Uint32(b)))
	case ir.BF16:
		return float64(math.Float32frombits(uint32(binary.NativeEndian.Uint16(b)) << 16))
	case ir.F16:
		return fromF16(binary.NativeEndian.Uint16(b))
	}
	return float64(math.Float32frombits(binary.NativeEndian.Uint32(b)))
}

func (e *executable) store(o ir.Operand, at []int, x float64) {
	b := e.word(o, at)
	switch o.DType {
	case ir.I32:
		binary.NativeEndian.PutUint32(b, uint32(int32(x)))
	case ir.BF16, ir.F16:
		binary.NativeEndian.PutUint16(b, backendtest.HalfBits(o.DType, x))
	default:
		binary.NativeEndian.PutUint32(b, math.Float32bits(float32(x)))
	}
}

// fromF16 is the number of a float16's bits.
func fromF16(h uint16) float64 {
	sign, e, m := 1-2*float64(h>>15), int(h>>10&31), float64(h&1023)
	switch {
	case e == 31 && m != 0:
		return math.NaN()
	case e == 31:
		return math.Inf(int(sign))
	case e == 0:
		return sign * math.Ldexp(m, -24)
	}
	return sign * math.Ldexp(1024+m, e-25)
}

func (e *executable) step(s *ir.Step) error {
	broken := os.Getenv("BREAK")
	if plain := s.Plain(); len(plain) > 1 {
		for i := range plain {
			if err := e.step(&plain[i]); err != nil {
				return err
			}
		}
		return nil
	}
	switch op := s.Op.(type) {
	case ir.Fused:
		elements(s.Loop.Shape, func(at []int) {
			regs := e.code(s, at)
			for i, r := range s.Results {
				e.store(s.Out[i], at, regs[r])
			}
		})
	case ir.Reduce:
		out := s.Out[0]
		sums := map[int]float64{}
		place := func(at []int) int {
			n := 0
			for d := range at {
				i := at[d]
				if out.Shape[d] == 1 {
					i = 0
				}
				n = n*out.Shape[d] + i
			}
			return n
		}
		elements(s.Loop.Shape, func(at []int) {
			regs := e.code(s, at)
			x, k := regs[len(regs)-1], place(at)
			old, ok := sums[k]
			switch {
			case !ok:
				sums[k] = x
			case op.Fn == ir.Sum:
				sums[k] += x
			case op.Fn == ir.MaxOf:
				sums[k] = max(old, x)
			default:
				sums[k] = min(old, x)
			}
		})
		empty := map[ir.Reduction]float64{ir.MaxOf: math.Inf(-1), ir.MinOf: math.Inf(1)}[op.Fn]
		elements(out.Shape, func(at []int) {
			x, ok := sums[place(at)]
			if !ok {
				x = empty
			}
			e.store(out, at, x)
		})
	case ir.Copy:
		if s.In[0].Shape.Size() != s.Out[0].Shape.Size() || !s.In[0].Shape.Equal(s.Out[0].Shape) {
			panic("copy between shapes")
		}
		elements(s.In[0].Shape, func(at []int) {
			if s.In[0].DType != s.Out[0].DType {
				e.store(s.Out[0], at, e.load(s.In[0], at))
				return
			}
			copy(e.word(s.Out[0], at)[:s.Out[0].DType.Size()], e.word(s.In[0], at))
		})
	case ir.Collective:
		if e.rt.Comm == nil {
			return nil
		}
		o := s.In[0]
		buf := make([]float32, o.Shape.Size())
		for i := range buf {
			buf[i] = float32(e.load(o, []int{i}))
		}
		if err := e.rt.Comm.Collective(e.ctx, op, buf); err != nil {
			return err
		}
		for i, x := range buf {
			e.store(o, []int{i}, float64(x))
		}
	default:
		var g ir.Graph
		var args []*ir.Value
		env := ref.NewEnv([ir.NumRegions]int{})
		env.Runtime = *e.rt
		in := s.In
		if s.Epilogue.Bias > 0 {
			in = in[:s.Epilogue.Bias]
		}
		for _, o := range in {
			slot := &ir.Slot{Region: ir.Input, Offset: len(env.Memory[ir.Input]), Shape: o.Shape}
			if o.DType == ir.I32 {
				slot.DType = ir.I32
			}
			elements(o.Shape, func(at []int) { env.Memory[ir.Input] = append(env.Memory[ir.Input], e.load(o, at)) })
			args = append(args, g.Read(slot))
		}
		v := g.Add(s.Op, nil, args...)
		if err := g.Err(); err != nil {
			return err
		}
		values, err := ref.Values(env, &g)
		if err != nil {
			return err
		}
		i := 0
		if broken == "overrun" {
			e.mem[ir.Input][0]++
		}
		elements(v.Shape, func(at []int) {
			x := values[v.ID][i]
			i++
			if s.Epilogue.Bias > 0 && broken != "bias" {
				axis := len(at) - 1
				if op, ok := s.Op.(ir.Conv2d); ok {
					axis = op.Conv.Channels()
				}
				x += e.load(s.In[s.Epilogue.Bias], at[axis:axis+1])
			}
			if s.Epilogue.Relu {
				x = max(x, 0)
			}
			if broken == "rounding" {
				x *= 1 + 1e-4
			}
			if broken == "nan" && i == 1 {
				x = math.NaN()
			}
			e.store(s.Out[0], at, x)
		})
	}
	return nil
}

// code computes the registers of a loop for one element.
func (e *executable) code(s *ir.Step, at []int) []float64 {
	regs := make([]float64, len(s.Loop.Code))
	for r, in := range s.Loop.Code {
		switch in.Kind {
		case ir.Load:
			regs[r] = e.load(s.In[in.In], at)
		case ir.Imm:
			regs[r] = float64(in.X)
		case ir.Apply:
			var a [3]float64
			for k := range in.Fn.Arity() {
				a[k] = regs[in.A[k]]
			}
			regs[r] = in.Fn.Eval(a[0], a[1], a[2])
		case ir.Index:
			regs[r] = float64(at[in.Axis])
		case ir.Random:
			per, flat := 1, 0
			strides := in.Rand.Numbering(s.Loop.Shape)
			for d, i := range at {
				flat += i * strides[d]
				if d > 0 {
					per *= s.Loop.Shape[d]
				}
			}
			w := philox.New(e.rt.Key(), in.Rand.Stream).Uint32At(uint64(e.rt.FirstSample*per + flat))
			regs[r] = float64(philox.Float32(w))
		}
	}
	return regs
}
