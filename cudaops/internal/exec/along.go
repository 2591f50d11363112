package exec

import (
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// The tensor cores of Hopper take operands in TF32 that lie along k. In the gradient of a layer's weights neither does, since k is the batch: there a library
// uses the instructions of older cards, or spends half of the time again. With one of the operands copied so that it lies along k it need not. And where such a product has few
// results of a long k, k is cut into parts, by which more multiprocessors have work.

// along is such a way to make a product.
type along struct {
	copied int // the operand: 0 is A, 1 is B
	parts  int // of k
	pieces int // of what is copied, made one after the other
}

func (a along) String() string {
	name := [...]string{"A", "B"}[a.copied] + " along k"
	if a.parts > 1 {
		name += fmt.Sprintf(", k in %d", a.parts)
	}
	if a.pieces > 1 {
		name += fmt.Sprintf(", in %d pieces", a.pieces)
	}
	return name
}

// alongWays lists the ways of that kind which are worth trying.
func alongWays(p matrices) []way {
	const worth = 1 << 30 // multiplications
	if p.batch > 1 || p.m*p.n*p.k < worth || p.strides[0][1] == 1 || p.strides[1][0] == 1 || p.biased || p.relu || p.masked {
		return nil
	}
	var list []way
	for operand := range 2 {
		list = append(list, along{operand, partsOfK(p), piecesOf(p, operand)}.way())
	}
	return list
}

// piecesOf is in how many pieces an operand is copied: as few as there are of which none takes more of the scratch than steps have for themselves. Where k is cut
// it is one, since the parts' results have to lie together.
func piecesOf(p matrices, operand int) int {
	const tile = 128
	n, length := 1, [...]int{p.m, p.n}[operand]
	if partsOfK(p) > 1 {
		return n
	}
	for length*p.k*p.dtype[operand].Size()/n > apart && length%(2*n*tile) == 0 {
		n *= 2
	}
	return n
}

// piece is piece i of n of a product, that of so many rows of A, or columns of B.
func (p matrices) piece(operand, i, n int) matrices {
	length, d := &p.m, 0
	if operand == 1 {
		length, d = &p.n, 1
	}
	*length /= n
	for _, k := range [...]int{operand, 2} {
		p.at[k] = p.at[k].plus(i * *length * p.strides[k][d] * p.dtype[k].Size())
	}
	return p
}

// partsOfK is in how many parts k is cut: as many as let the library's tiles fill a large card once.
func partsOfK(p matrices) int {
	const (
		tile  = 128
		large = 132 // multiprocessors
		least = 256 // of k
	)
	parts, tiles := 1, blocks(p.m, tile)*blocks(p.n, tile)
	for 2*parts*tiles <= large && p.k%(2*parts*lanes) == 0 && p.k/(2*parts) >= least && p.strides[2][0] == p.n {
		parts *= 2
	}
	return parts
}

func (a along) way() way { return way{name: a.String(), plan: a.plan} }

func (a along) plan(b *planner, s *ir.Step) error {
	plain := s.Plain()
	p, err := newMatrices(&plain[0])
	if err != nil {
		return err
	}
	rest := plain[1:]
	var sums []ir.Step // that each piece adds up of what is its own
	var mask *ir.Operand
	turned := a.copied == 0 && s.Epilogue.Sums && p.strides[0][0] == 1
	if turned {
		last := len(rest) - 1
		rest, sums = rest[:last], rest[last:]
		if m, ok := b.takeMask(s); ok {
			mask = &m
		}
	}
	fresh, free := b.fresh, b.used
	for i := range a.pieces {
		if i > 0 {
			if fresh {
				free = b.own[b.step].from
			}
			b.used = free // the piece before it is done with that
		}
		q, after := p.piece(a.copied, i, a.pieces), slices.Clone(sums)
		switch {
		case turned:
			err = b.turn(&q, mask, i, &after[0])
		case a.copied == 0:
			err = b.copied(&q, 0, q.k, 1)
		default:
			err = b.copied(&q, 1, 1, q.k)
		}
		if err != nil {
			return err
		}
		if a.parts == 1 {
			err = b.byLibrary(q)
		} else {
			err = b.inPartsOfK(q, s, a.parts)
		}
		if err == nil {
			err = b.rest(after)
		}
		if err != nil {
			return err
		}
	}
	return b.rest(rest)
}

// rest builds what follows the product, each step as tasks that wait for what concerns it alone.
func (b *planner) rest(steps []ir.Step) error {
	for i := range steps {
		if err := b.only(operands(&steps[i]), func() error { return b.build(&steps[i]) }); err != nil {
			return err
		}
	}
	return nil
}

// inPartsOfK makes a product of each part of k, all at once, and adds them up in order.
func (b *planner) inPartsOfK(p matrices, s *ir.Step, parts int) error {
	results, k, n := p.at[2], p.k/parts, p.m*p.n
	p.batch, p.k, p.at[2] = parts, k, b.temporary(parts*n)
	p.strides[0][2], p.strides[1][2], p.strides[2][2] = k*p.strides[0][1], k*p.strides[1][0], n
	if err := b.byLibrary(p); err != nil {
		return err
	}
	all := ir.Of(n)
	sum := ir.Step{
		Op: ir.Fused{}, Name: s.Name, Loop: &ir.Loop{Shape: all},
		Out: []ir.Operand{{Region: results.base, Offset: results.bytes / wordBytes, Shape: all, Strides: all.Strides()}},
	}
	for i := range parts {
		sum.In = append(sum.In, ir.Operand{Region: scratch, Offset: p.at[2].bytes/wordBytes + i*n, Shape: all, Strides: all.Strides()})
		sum.Loop.Code = append(sum.Loop.Code, ir.Instr{Kind: ir.Load, In: i})
	}
	for i := 1; i < parts; i++ {
		last := len(sum.Loop.Code) - 1
		if i == 1 {
			last = 0
		}
		sum.Loop.Code = append(sum.Loop.Code, ir.Instr{Kind: ir.Apply, Fn: ir.Add, A: [3]int{last, i}})
	}
	sum.Results = []int{len(sum.Loop.Code) - 1}
	if err := b.rest([]ir.Step{sum}); err != nil {
		return err
	}
	b.tasks[len(b.tasks)-1].sum = &sum
	return nil
}

// turn puts a copy of A, whose columns lie one after the other, along k in its place. It reads all of A, so it also makes sums of rows, a tile each, which the
// step for sums adds up in place of A; and if A has a mask, it applies that. Mask and sums are those of all pieces of a product, of which this is one.
func (b *planner) turn(p *matrices, mask *ir.Operand, piece int, sums *ir.Step) error {
	const side, long = 32, 4 // of a tile, which is that many sides long
	tiles := blocks(p.k, side*long)
	on := []span{p.at[0].span(p.bytes(0), false)}
	args, reach, stride := []place{p.at[0], p.at[0]}, p.bytes(0)/wordBytes, 0
	if mask != nil {
		m := *mask
		m.Offset, m.Shape = m.Offset+piece*p.m, ir.Of(p.k, p.m)
		on, args[1], stride = append(on, extent(m)), at(m), m.Strides[0]
		reach = max(reach, p.k*stride)
	}
	var to, parts place
	err := b.only(on, func() error {
		to, parts = b.temporary(p.m*p.k), b.temporary(tiles*p.m)
		text := fmt.Sprintf("%s    transposeSum<%d, %t, %s, %d, %d, %d, %d>(from, mask, to, sums);\n}\n",
			waiting("const float *from", "const float *mask", "float *to", "float *sums"), long, mask != nil, indexType(reach, p.m*p.k), p.m, p.k, p.strides[0][1], stride)
		b.add(launch{kernel: b.kernel("transposeSum", text, "move"), args: append(args, to, parts), blocks: blocks(p.m, side) * tiles})
		return nil
	})
	if err != nil {
		return err
	}
	p.at[0], p.strides[0] = to, [3]int{p.k, 1}
	shape := ir.Of(tiles, p.m)
	out := sums.Out[0]
	out.Offset += piece * p.m
	out.Shape, out.Strides = ir.Of(1, p.m), ir.Of(1, p.m).Strides()
	sums.Op, sums.Loop, sums.Out = ir.Reduce{Fn: ir.Sum, Axes: []int{0}}, &ir.Loop{Shape: shape, Code: []ir.Instr{{Kind: ir.Load}}}, []ir.Operand{out}
	sums.In = []ir.Operand{{Region: scratch, Offset: parts.bytes / wordBytes, Shape: shape, Strides: shape.Strides()}}
	return nil
}

// takeMask takes away the task that masks what a step made, if the current step is the only one that reads it, as the first operand, the other way round, and what
// masks it is still there.
func (b *planner) takeMask(s *ir.Step) (mask ir.Operand, ok bool) {
	if s.In[0].Region != ir.Work {
		return mask, false
	}
	steps, a := b.program.Steps, extent(s.In[0])
	writes := func(s *ir.Step, on span) bool {
		return slices.ContainsFunc(s.Out, func(o ir.Operand) bool { return extent(o).overlaps(on) })
	}
	maker := b.step - 1
	for maker >= 0 && !writes(&steps[maker], a) {
		maker--
	}
	if maker < 0 || steps[maker].Epilogue.Mask == 0 {
		return mask, false
	}
	made := steps[maker].Out[0]
	mask = steps[maker].In[steps[maker].Epilogue.Mask]
	if len(made.Shape) != 2 || at(made) != at(s.In[0]) || made.Strides[0] != s.In[0].Strides[1] || made.Strides[1] != s.In[0].Strides[0] ||
		mask.DType != ir.F32 || mask.Strides[1] != 1 {
		return mask, false
	}
	for i := maker; i <= b.step; i++ {
		if writes(&steps[i], extent(mask)) {
			return mask, false
		}
	}
	for i := maker + 1; i < len(steps); i++ {
		for k, o := range steps[i].In {
			if extent(o).overlaps(a) && (i != b.step || k > 0) {
				return mask, false
			}
		}
		if writes(&steps[i], a) {
			break
		}
	}
	i := slices.IndexFunc(b.tasks, func(t task) bool { return t.step == maker && t.masks })
	if i < 0 {
		return mask, false
	}
	b.tasks = slices.Delete(b.tasks, i, i+1)
	return mask, true
}

// copied puts a copy of an operand, with other strides by row and column, in its place. The copy is a task of its own, which waits for nothing but the operand.
func (b *planner) copied(p *matrices, i, row, column int) error {
	rows, columns := p.extents(i)
	shape, from, to, batch := ir.Of(rows, columns), p.strides[i][:2], []int{row, column}, 0
	if p.strides[i][2] != 0 {
		batch = rows * columns
		shape, from, to = ir.Of(p.batch, rows, columns), []int{p.strides[i][2], from[0], from[1]}, []int{batch, row, column}
	}
	bytes := shape.Size() * p.dtype[i].Size()
	var at place
	err := b.only([]span{p.at[i].span(p.bytes(i), false)}, func() error {
		at = b.temporary((bytes + wordBytes - 1) / wordBytes)
		return b.move(shape, strided{p.at[i], from, p.dtype[i]}, strided{at, to, p.dtype[i]})
	})
	if err != nil {
		return err
	}
	p.at[i], p.strides[i] = at, [3]int{row, column, batch}
	return nil
}
