package cublas

import (
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/internal/ir"
)

// Matrix says where the elements of an operand lie: by the strides, in elements, from one row to the next, one column to the next, and one
// product of the batch to the next.
type Matrix struct{ Row, Col, Batch int }

// BiasGrad asks for sums over the inner dimension beside the product: where A or B is a gradient, they are that of a bias. cuBLASLt 13.1 has
// SumA only for an A with a row stride of 1.
type BiasGrad uint8

// The sums.
const (
	NoBiasGrad BiasGrad = iota
	SumA                // of each row of A, M of them
	SumB                // of each column of B, N of them
)

// Product is C = A B, [B,]M,K x [B,]K,N -> [B,]M,N, and what is done with it before it is stored.
type Product struct {
	Batch, M, N, K int // Batch 0 is 1
	A, B, C        Matrix
	In, Out        ir.DType // of A and B; of C and the bias. Whatever they are, sums are in float32

	Bias     bool     // a vector of N is added to every row,
	Relu     bool     // then what is negative becomes 0
	BiasGrad BiasGrad // instead of Bias and Relu: the vector is a result
	TF32     bool     // float32 inputs may be rounded to 10 bits of mantissa, which is some ten times as fast

	// Aligned says that all buffers will lie on the boundary of [Alignment]. The library is not asked then what it has for others, over which it
	// thinks a while the first time.
	Aligned bool

	Room int64 // the most workspace that it may need, if that is less than the handle's; 0: as much as that
}

// ErrLayout is what errors of operands wrap whose strides the library cannot take.
var ErrLayout = errors.New("no unit stride, or elements that overlap")

// LayoutError says which operand it is. A copy of it with a column stride of 1 will do.
type LayoutError struct {
	Operand    byte // 'A', 'B' or 'C'
	Matrix     Matrix
	Rows, Cols int
}

func (e *LayoutError) Error() string {
	return fmt.Sprintf("cublas: operand %c, %dx%d with strides %d and %d (batch %d): %v", e.Operand, e.Rows, e.Cols, e.Matrix.Row, e.Matrix.Col, e.Matrix.Batch, ErrLayout)
}

// Unwrap returns ErrLayout.
func (e *LayoutError) Unwrap() error { return ErrLayout }

// Constants of the library's headers.
const (
	realF32, realF16, realBF16 = 0, 2, 14 // cudaDataType

	compute32F, compute32FFastTF32 = 68, 77 // cublasComputeType_t

	epilogueDefault, epilogueRelu, epilogueBias = 1, 2, 4 // cublasLtEpilogue_t
	epilogueBGradA, epilogueBGradB              = 256, 512
)

// dataTypes are the types that the library has, by its names.
var dataTypes = map[ir.DType]int32{ir.F32: realF32, ir.BF16: realBF16, ir.F16: realF16}

// compute is the library's name of the arithmetic.
func (p Product) compute() int32 {
	if p.TF32 && p.In == ir.F32 {
		return compute32FFastTF32
	}
	return compute32F
}

// epilogue is the library's name of what is done with the product. Its operands are ours the other way round.
func (p Product) epilogue() uint64 {
	switch p.BiasGrad {
	case SumA:
		return epilogueBGradB
	case SumB:
		return epilogueBGradA
	}
	e := uint64(0)
	if p.Bias {
		e |= epilogueBias
	}
	if p.Relu {
		e |= epilogueRelu
	}
	if e == 0 {
		return epilogueDefault
	}
	return e
}

// Heavy reports whether the product is heavy work; see [choices.Heavy].
func (p Product) Heavy() bool { return choices.Heavy(max(p.Batch, 1) * p.M * p.N * p.K) }

// vector reports whether there is a vector beside the matrices.
func (p Product) vector() bool { return p.Bias || p.BiasGrad != NoBiasGrad }

// check says what is wrong with a product, its layouts aside.
func (p Product) check() error {
	switch {
	case p.M < 1 || p.N < 1 || p.K < 1 || p.Batch < 0:
		return fmt.Errorf("cublas: a product of %d times %dx%dx%d", p.Batch, p.M, p.K, p.N)
	case p.In == ir.I32:
		return errors.New("cublas: a product of i32")
	case p.Out != ir.F32 && p.Out != p.In:
		return fmt.Errorf("cublas: a product of %s in %s: the result is f32 or of the operands' type", p.In, p.Out)
	case p.BiasGrad != NoBiasGrad && (p.Bias || p.Relu):
		return errors.New("cublas: a product with a bias or ReLU and the gradient of a bias: it is one or the other")
	}
	return nil
}

// fold makes one product of a batch whose products are rows of one, as when all have the same B.
func (p Product) fold() Product {
	p.Batch = max(p.Batch, 1)
	if p.Batch > 1 && p.B.Batch == 0 && p.A.Batch == p.M*p.A.Row && p.C.Batch == p.M*p.C.Row && p.BiasGrad == NoBiasGrad {
		p.M *= p.Batch
		p.Batch = 1
	}
	if p.Batch == 1 {
		p.A.Batch, p.B.Batch, p.C.Batch = 0, 0, 0
	}
	return p
}

// layout is a matrix as the library sees it: column-major, and whether it is to be transposed.
type layout struct {
	rows, cols, ld, batch int
	transposed            bool
}

// operand is the layout of the transpose of a row-major matrix: column-major C' = B' A' is row-major C = A B.
func operand(m Matrix, rows, cols int) (layout, bool) {
	// The stride of a dimension of one element is of no account.
	if (m.Col == 1 || cols == 1) && (m.Row >= cols || rows == 1) {
		return layout{rows: cols, cols: rows, ld: max(m.Row, cols), batch: m.Batch}, m.Batch >= 0
	}
	if (m.Row == 1 || rows == 1) && m.Col >= rows {
		return layout{rows: rows, cols: cols, ld: m.Col, batch: m.Batch, transposed: true}, m.Batch >= 0
	}
	return layout{}, false
}

// layouts are those of the three matrices.
func (p Product) layouts() (a, b, c layout, err error) {
	var ok bool
	if a, ok = operand(p.A, p.M, p.K); !ok {
		return a, b, c, &LayoutError{Operand: 'A', Matrix: p.A, Rows: p.M, Cols: p.K}
	}
	if b, ok = operand(p.B, p.K, p.N); !ok {
		return a, b, c, &LayoutError{Operand: 'B', Matrix: p.B, Rows: p.K, Cols: p.N}
	}
	if c, ok = operand(p.C, p.M, p.N); !ok || c.transposed || p.Batch > 1 && p.C.Batch < 1 {
		return a, b, c, &LayoutError{Operand: 'C', Matrix: p.C, Rows: p.M, Cols: p.N}
	}
	return a, b, c, nil
}
