package exec

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// team is how many threads share a row of that many numbers.
func team(columns int) int {
	if columns > 512 {
		return threads
	}
	return min(32, ceilPow2(columns))
}

// lastDim is how many rows and columns a shape has.
func lastDim(s ir.Shape) (rows, columns int) {
	columns = s[len(s)-1]
	if columns == 0 {
		return 0, 0
	}
	return s.Size() / columns, columns
}

// rowwise launches a function of rows.cuh; params are C++, one an operand, the result last. more are template arguments after rows,
// columns and the threads of a row.
func (b *planner) rowwise(function string, rows, columns int, more string, params []string, args ...place) {
	g := team(columns)
	f := fmt.Sprintf("%s<%d, %d, %d%s>", function, rows, columns, g, more)
	b.launch(b.kernel(function, call(f, params...), "rows"), blocks(rows, threads/g), args...)
}

func (b *planner) softmax(s *ir.Step, op ir.Softmax) error {
	if err := contiguous(s.In[0], s.Out[0]); err != nil {
		return err
	}
	if rows, columns := lastDim(s.Out[0].Shape); rows > 0 {
		b.rowwise("softmax", rows, columns, fmt.Sprintf(", %t", op.Log), []string{reads(s.In[0], "x"), writes(s.Out[0], "y")}, at(s.In[0]), at(s.Out[0]))
	}
	return nil
}

func (b *planner) softmaxGrad(s *ir.Step, op ir.SoftmaxGrad) error {
	if err := contiguous(s.In[0], s.In[1], s.Out[0]); err != nil {
		return err
	}
	if rows, columns := lastDim(s.Out[0].Shape); rows > 0 {
		b.rowwise("softmaxGrad", rows, columns, fmt.Sprintf(", %t", op.Log), []string{reads(s.In[0], "y"), reads(s.In[1], "dy"), writes(s.Out[0], "dx")},
			at(s.In[0]), at(s.In[1]), at(s.Out[0]))
	}
	return nil
}

func (b *planner) crossEntropy(s *ir.Step, op ir.CrossEntropy) error {
	return b.loss(s, op.Smoothing, op.Ignore)
}

func (b *planner) crossEntropyGrad(s *ir.Step, op ir.CrossEntropyGrad) error {
	return b.loss(s, op.Smoothing, op.Ignore)
}

// loss launches cross entropies, their gradient, or both.
func (b *planner) loss(s *ir.Step, smoothing float64, ignore int) error {
	if err := contiguous(slices.Concat(s.In, s.Out)...); err != nil {
		return err
	}
	rows, columns := s.In[0].Shape[0], s.In[0].Shape[1]
	if rows == 0 {
		return nil
	}
	if columns == 0 {
		return fmt.Errorf("operand %v has no classes", s.In[0])
	}
	params := []string{reads(s.In[0], "logits"), reads(s.In[1], "labels"), reads(s.In[2], "weights")}
	args := []place{at(s.In[0]), at(s.In[1]), at(s.In[2])}
	params, args = append(params, writes(s.Out[0], "out")), append(args, at(s.Out[0]))
	function, more, results := "crossEntropy", "", "out"
	if len(s.In) == 4 {
		params, args = append(params, reads(s.In[3], "dloss")), append(args, at(s.In[3]))
		function, more, results = "crossEntropyGrad", fmt.Sprintf(", %t", s.Epilogue.Losses), "dloss, out, (float *)nullptr"
	}
	if s.Epilogue.Losses {
		params, args, results = append(params, writes(s.Out[1], "losses")), append(args, at(s.Out[1])), "dloss, out, losses"
	}
	params = append(params, "u64 *word")
	args = append(args, b.guard(s.In[1], ir.CheckIndex{Bound: columns, Ignore: ignore, What: "label"}))
	g := team(columns)
	text := fmt.Sprintf("%s    %s<%d, %d, %d, %t%s>(logits, labels, weights, %s, word, %d, %s, %s);\n}\n", waiting(params...), function,
		rows, columns, g, smoothing != 0, more, results, int32(ignore), literal(float32(1-smoothing)), literal(float32(smoothing/float64(columns))))
	b.launch(b.kernel(function, text, "rows"), blocks(rows, threads/g), args...)
	return nil
}

func (b *planner) argMax(s *ir.Step, op ir.ArgMax) error {
	if err := contiguous(s.In[0], s.Out[0]); err != nil {
		return err
	}
	shape := s.In[0].Shape
	n, k, inner := s.Out[0].Shape.Size(), shape[op.Axis], shape[op.Axis+1:].Size()
	if n == 0 {
		return nil
	}
	if k == 0 {
		b.add(fill{at(s.Out[0]), n, 0})
		return nil
	}
	g := 1 // threads side by side read neighbours
	if inner < 32 {
		g = min(32, ceilPow2(k))
	}
	f := fmt.Sprintf("argMax<%d, %d, %d, %d>", n, k, inner, g)
	b.launch(b.kernel("argMax", call(f, reads(s.In[0], "x"), "int *out"), "rows"), blocks(n, threads/g), at(s.In[0]), at(s.Out[0]))
	return nil
}

// noIgnore is the index to ignore where there is none.
const noIgnore = math.MinInt32

func (b *planner) checkIndex(s *ir.Step, op ir.CheckIndex) error {
	if err := contiguous(s.In[0], s.Out[0]); err != nil {
		return err
	}
	n := s.In[0].Shape.Size()
	if n == 0 {
		return nil
	}
	text := fmt.Sprintf("%s    check<%d>(in, out, word, %d, %d);\n}\n", waiting("const int *in", "int *out", "u64 *word"), n, op.Bound, int32(op.Ignore))
	b.launch(b.kernel("check", text, "move"), blocks(n, threads), at(s.In[0]), at(s.Out[0]), b.guard(s.In[0], op))
	return nil
}

func (b *planner) gather(s *ir.Step) error {
	table, indices, out := s.In[0], s.In[1], s.Out[0]
	if err := contiguous(table, indices, out); err != nil {
		return err
	}
	n, width := indices.Shape.Size(), table.Shape[1:].Size()
	if n*width == 0 {
		return nil
	}
	v := 1
	if width%lanes == 0 && at(table).even(table.DType.Size()) && at(out).even(out.DType.Size()) {
		v = lanes
	}
	from, to := movedAs(table.DType, out.DType)
	f := fmt.Sprintf("gather<%d, %d, %d, %d>", n, width, table.Shape[0], v)
	k := b.kernel("gather", call(f, "const "+from+" *table", "const int *indices", to+" *out", "u64 *word"), "move")
	guard := b.guard(indices, ir.CheckIndex{Bound: table.Shape[0], Ignore: noIgnore, What: "row"})
	b.launch(k, blocks(n*width/v, threads), at(table), at(indices), at(out), guard)
	return nil
}

func (b *planner) scatterAdd(s *ir.Step, op ir.ScatterAdd) error {
	indices, rows, out := s.In[0], s.In[1], s.Out[0]
	if err := contiguous(indices, rows, out); err != nil {
		return err
	}
	n, width := indices.Shape.Size(), out.Shape[1:].Size()
	if op.Rows*width == 0 {
		return nil
	}
	k := min(8, blocks(width, 32)) // columns a lane
	const tile = 64                // rows a block
	f := fmt.Sprintf("scatterAdd<%d, %d, %d, %d, %d>", n, width, op.Rows, tile, k)
	kernel := b.kernel("scatterAdd", call(f, "const int *indices", reads(rows, "rows"), "float *out", "u64 *word"), "move")
	word := b.guard(indices, ir.CheckIndex{Bound: op.Rows, Ignore: noIgnore, What: "row"})
	b.launch(kernel, blocks(op.Rows, tile)*blocks(width, 32*k), at(indices), at(rows), at(out), word)
	return nil
}
