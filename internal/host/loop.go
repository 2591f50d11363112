package host

import (
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// level says how often a register's value changes.
type level uint8

const (
	uniform  level = iota // the same everywhere: one number, computed once a run
	perTile               // the same throughout a tile: one number a tile
	periodic              // the same in every row of tiles of several rows: a tile of numbers, computed once a run
	vector                // a number an element
)

// operand is memory that a loop reads or writes, from its first element on. Index and Random instructions are operands without
// memory, whose offsets are the values or lead to them.
type operand struct {
	view
	f []float32
	i []int32
}

// loop is an ir.Loop made ready: straight-line code over registers. A register is a tile of numbers, in memory itself or in a buffer,
// or one number.
type loop struct {
	space
	tiling
	kernels  *kernel.Vector
	operands []operand
	once     []op // uniform and periodic registers
	body     []op // the others, in order; then what is left to store
	regs     int
	buffers  int
	result   int // register that a reduction takes

	random    bool
	perSample uint64 // random words a sample
	// Set at the start of each run.
	key, first uint64

	frames []frame // one a thread
}

// frame is the registers of one thread.
type frame struct {
	vec     [][]float32 // registers that are vectors
	one     []float32   // registers that are single numbers
	buffers [][]float32
	walk    walker
	spare   []float32 // for the loop's user: two tiles
}

type opcode uint8

const (
	opAlias  opcode = iota // dst is the operand's own memory
	opGather               // buffer = operand's elements
	opScalar               // one = operand's element
	opFill                 // buffer = register a, a single number
	opIndex
	opIndexScalar
	opRandom
	opVV // and below: dst = function of registers
	opV
	opVS
	opVVV
	opVVS
	opVSS
	opStore // operand = register a
	opStoreScalar
)

// op is an instruction with everything decided.
type op struct {
	code    opcode
	scalar  bool // registers are single numbers
	dst     int
	a, b, c int
	operand int // what is read, or for stores written
	out     int // the output that dst is computed into, or -1: into the buffer
	buffer  int
	stream  uint64

	v   func(dst, a []float32)
	vv  func(dst, a, b []float32)
	vs  func(dst, a []float32, s float32)
	vvv func(dst, a, b, c []float32)
	vvs func(dst, a, b []float32, s float32)
	vss func(dst, a []float32, s, t float32)
}

// loopBuilder turns an ir.Loop into a loop.
type loopBuilder struct {
	*loop
	src     *ir.Loop
	level   []level
	lastUse []int // position of the last reader; len(code) if stored at the end; -1 if never read
	fma     []bool
	direct  []int // the output a register is computed into, or -1
	bufOf   []int
	free    []int
	ins     []int // operand of Load.In
	virtual []int // operand of Index and Random instructions, by position
	outs    []int
}

// buildLoop prepares l. ins and outs are its operands; all strides are given for the dimensions of l.Shape taken in the order
// perm. results[i] is stored to outs[i]; with none, the last register is the loop's result, and reduced its operand outs[0].
func buildLoop(l *ir.Loop, v *kernel.Vector, m *memory, ins, outs []ir.Operand, results, perm []int) (*loop, error) {
	b := &loopBuilder{loop: &loop{kernels: v}, src: l}
	shape := make([]int, len(perm))
	for i, d := range perm {
		shape[i] = l.Shape[d]
	}
	var strides [][]int
	add := func(st []int, f []float32, i []int32) int {
		p := make([]int, len(perm))
		for k, d := range perm {
			p[k] = st[d]
		}
		strides = append(strides, p)
		b.operands = append(b.operands, operand{f: f, i: i})
		return len(strides) - 1
	}
	bind := func(list []ir.Operand) ([]int, error) {
		var at []int
		for _, o := range list {
			if len(o.Strides) != len(l.Shape) {
				return nil, fmt.Errorf("operand %v does not fit a loop over %v", o, l.Shape)
			}
			if o.DType == ir.I32 {
				x, err := m.ints(o)
				if err != nil {
					return nil, err
				}
				at = append(at, add(o.Strides, nil, x))
				continue
			}
			x, err := m.floats(o)
			if err != nil {
				return nil, err
			}
			at = append(at, add(o.Strides, x, nil))
		}
		return at, nil
	}
	var err error
	if b.ins, err = bind(ins); err != nil {
		return nil, err
	}
	if b.outs, err = bind(outs); err != nil {
		return nil, err
	}
	b.virtual = make([]int, len(l.Code))
	for i, in := range l.Code {
		switch in.Kind {
		case ir.Index:
			st := make([]int, len(l.Shape))
			st[in.Axis] = 1
			b.virtual[i] = add(st, nil, nil)
		case ir.Random:
			b.virtual[i] = add(in.Rand.Numbering(l.Shape), nil, nil)
			b.random = true
			b.perSample = uint64(l.Shape.Size())
			if len(l.Shape) > 0 && l.Shape[0] > 0 {
				b.perSample /= uint64(l.Shape[0])
			}
		}
	}
	var views []view
	if b.space, views, err = merge(shape, strides); err != nil {
		return nil, err
	}
	for i := range views {
		b.operands[i].view = views[i]
	}
	b.tiling = b.space.tiling()
	return b.loop, b.generate(ins, outs, results)
}

func (b *loopBuilder) generate(ins, outs []ir.Operand, results []int) error {
	code := b.src.Code
	n := len(code)
	b.regs = n
	b.bufOf = make([]int, n)
	b.findFma(results)
	b.findLevels()
	b.findUses(results)
	b.chooseDirect(ins, outs, results)
	for i := range code {
		if b.lastUse[i] >= 0 && !b.fma[i] {
			if err := b.emit(i); err != nil {
				return err
			}
		}
	}
	for k, r := range results {
		o := b.outs[k]
		switch {
		case b.direct[r] == o:
		case b.isVector(r):
			b.body = append(b.body, op{code: opStore, a: r, operand: o})
		default:
			b.body = append(b.body, op{code: opStoreScalar, a: r, operand: o})
		}
	}
	if results == nil {
		b.result = n - 1
		if !b.isVector(n - 1) {
			b.result = b.spread(n-1, vector)
		}
	}
	return nil
}

// findFma marks products whose only reader is a sum: the sum takes both, rounding once.
func (b *loopBuilder) findFma(results []int) {
	code := b.src.Code
	readers := make([]int, len(code))
	for _, in := range code {
		if in.Kind == ir.Apply {
			for _, a := range in.A[:in.Fn.Arity()] {
				readers[a]++
			}
		}
	}
	for _, r := range results {
		readers[r]++
	}
	b.fma = make([]bool, len(code))
	for _, in := range code {
		if in.Kind != ir.Apply || in.Fn != ir.Add {
			continue
		}
		for k, a := range in.A[:2] {
			if p := code[a]; p.Kind == ir.Apply && p.Fn == ir.Mul && readers[a] == 1 && !b.fma[in.A[1-k]] {
				b.fma[a] = true
			}
		}
	}
}

// product returns which argument of a sum is a product to be taken in, or -1.
func (b *loopBuilder) product(in ir.Instr) int {
	if in.Kind == ir.Apply && in.Fn == ir.Add {
		for k, a := range in.A[:2] {
			if b.fma[a] {
				return k
			}
		}
	}
	return -1
}

// args returns the registers that instruction in reads.
func (b *loopBuilder) args(in ir.Instr) []int {
	if in.Kind != ir.Apply {
		return nil
	}
	if k := b.product(in); k >= 0 {
		p := b.src.Code[in.A[k]]
		return []int{p.A[0], p.A[1], in.A[1-k]}
	}
	return in.A[:in.Fn.Arity()]
}

func (b *loopBuilder) findLevels() {
	b.level = make([]level, len(b.src.Code))
	of := func(o int) level {
		v := &b.operands[o].view
		switch {
		case v.repeats() && v.step == 0:
			return uniform
		case v.repeats() && b.tileRows > 1:
			return periodic
		case v.step == 0 && b.tileRows == 1:
			return perTile
		}
		return vector
	}
	for i, in := range b.src.Code {
		switch in.Kind {
		case ir.Load:
			b.level[i] = of(b.ins[in.In])
		case ir.Index:
			b.level[i] = of(b.virtual[i])
		case ir.Random:
			b.level[i] = vector
		case ir.Apply:
			for _, a := range b.args(in) {
				b.level[i] = max(b.level[i], b.level[a])
			}
		}
	}
	// A product that changes less often than the sum is computed on its own, and less often.
	for i, in := range b.src.Code {
		if k := b.product(in); k >= 0 {
			p := b.src.Code[in.A[k]]
			if !b.isVector(i) || max(b.level[p.A[0]], b.level[p.A[1]]) < b.level[i] {
				b.fma[in.A[k]] = false
			}
		}
	}
}

func (b *loopBuilder) findUses(results []int) {
	n := len(b.src.Code)
	b.lastUse = make([]int, n)
	for i := range b.lastUse {
		b.lastUse[i] = -1
	}
	if results == nil {
		b.lastUse[n-1] = n
	}
	for _, r := range results {
		b.lastUse[r] = n
	}
	for i := n - 1; i >= 0; i-- {
		if b.lastUse[i] < 0 || b.fma[i] {
			continue
		}
		for _, a := range b.args(b.src.Code[i]) {
			b.lastUse[a] = max(b.lastUse[a], i)
		}
	}
}

// chooseDirect finds the registers that can be computed straight into an output: dense ones, unless a later instruction still reads
// what the output's memory held before.
func (b *loopBuilder) chooseDirect(ins, outs []ir.Operand, results []int) {
	code := b.src.Code
	b.direct = make([]int, len(code))
	for i := range b.direct {
		b.direct[i] = -1
	}
	for k, r := range results {
		o := b.outs[k]
		if k := code[r].Kind; b.direct[r] >= 0 || b.level[r] != vector || k == ir.Load || k == ir.Imm ||
			!b.operands[o].dense(b.cols, b.tileRows) {
			continue
		}
		ok := true
		for i, in := range code {
			if in.Kind != ir.Load || !overlap(ins[in.In], outs[k]) {
				continue
			}
			last := i
			if b.aliases(i) {
				last = b.lastUse[i]
			}
			ok = ok && last <= r && samePlace(ins[in.In], outs[k])
		}
		if ok {
			b.direct[r] = o
		}
	}
}

// overlap reports whether two operands may share memory.
func overlap(a, b ir.Operand) bool {
	return a.Region == b.Region && a.Offset < b.Offset+extent(b) && b.Offset < a.Offset+extent(a)
}

// samePlace reports whether each element of a is the same element of b.
func samePlace(a, b ir.Operand) bool {
	return a.Offset == b.Offset && slices.Equal(a.Strides, b.Strides)
}

// aliases reports whether Load i needs no copy.
func (b *loopBuilder) aliases(i int) bool {
	o := &b.operands[b.ins[b.src.Code[i].In]]
	return b.level[i] == vector && o.f != nil && o.dense(b.cols, b.tileRows)
}

// take finds a buffer for a register of level l. What is computed once a run keeps its own: any other would be written again
// in every tile before it is read.
func (b *loopBuilder) take(l level) int {
	if n := len(b.free); n > 0 && l == vector {
		t := b.free[n-1]
		b.free = b.free[:n-1]
		return t
	}
	b.buffers++
	return b.buffers - 1
}

// put appends o to the code that its level runs in.
func (b *loopBuilder) put(l level, o op) {
	if l == uniform || l == periodic {
		b.once = append(b.once, o)
	} else {
		b.body = append(b.body, o)
	}
}

// spread makes a vector of scalar register r for an instruction of level l, in a buffer of its own, and returns its register.
func (b *loopBuilder) spread(r int, l level) int {
	t := b.regs
	b.regs++
	b.bufOf = append(b.bufOf, b.take(l))
	b.put(l, op{code: opFill, dst: t, a: r, out: -1, buffer: b.bufOf[t]})
	return t
}

func (b *loopBuilder) emit(i int) error {
	in := b.src.Code[i]
	l := b.level[i]
	o := op{dst: i, operand: -1, out: -1, buffer: -1, scalar: l < periodic}
	b.bufOf[i] = -1
	switch in.Kind {
	case ir.Imm:
		return nil // set when the frames are made
	case ir.Load:
		o.operand = b.ins[in.In]
		switch {
		case l < periodic:
			o.code = opScalar
		case b.aliases(i):
			o.code = opAlias
		default:
			o.code, o.buffer = opGather, b.take(l)
		}
	case ir.Index:
		o.code, o.operand = opIndexScalar, b.virtual[i]
		if l >= periodic {
			o.code = opIndex
			b.place(i, &o)
		}
	case ir.Random:
		o.code, o.operand, o.stream = opRandom, b.virtual[i], in.Rand.Stream
		b.place(i, &o)
	case ir.Apply:
		if err := b.apply(in, &o); err != nil {
			return err
		}
		if l >= periodic {
			// A register read here for the last time gives its buffer to the result: kernels work in place.
			for _, a := range b.args(in) {
				if b.level[a] == vector { // the others' are needed again in the next tile
					b.release(a, i)
				}
			}
			b.place(i, &o)
		}
		for _, t := range [...]int{o.a, o.b, o.c} {
			if t >= len(b.src.Code) && l == vector { // spread for this instruction only
				b.release(t, i)
			}
		}
	}
	b.bufOf[i] = o.buffer
	b.put(l, o)
	return nil
}

// place decides where vector i is computed.
func (b *loopBuilder) place(i int, o *op) {
	if o.out = b.direct[i]; o.out < 0 {
		o.buffer = b.take(b.level[i])
	}
}

// release frees the buffer of register r if instruction i is the last to read it.
func (b *loopBuilder) release(r, i int) {
	if b.bufOf[r] >= 0 && (r >= len(b.src.Code) || b.lastUse[r] == i) {
		b.free = append(b.free, b.bufOf[r])
		b.bufOf[r] = -1
	}
}

// prepare makes a frame for every thread, with buffers cut from the thread's scratch.
func (l *loop) prepare(src *ir.Loop, all []scratch) {
	l.frames = make([]frame, len(all))
	for t := range l.frames {
		f := &l.frames[t]
		f.vec = make([][]float32, l.regs)
		f.one = make([]float32, l.regs)
		f.buffers = make([][]float32, l.buffers)
		f.spare = all[t].f[l.buffers*tileLen : (l.buffers+2)*tileLen]
		for i := range f.buffers {
			f.buffers[i] = all[t].f[i*tileLen : (i+1)*tileLen : (i+1)*tileLen]
		}
		for i, in := range src.Code {
			if in.Kind == ir.Imm {
				f.one[i] = in.X
			}
		}
	}
}
