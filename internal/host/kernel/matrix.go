package kernel

import "fmt"

// Matrix is a strided view: element (i, j) of item b is Data[b*Batch + i*Row + j*Col]. Transposes, slices, reversed
// batches and broadcasts (stride 0) cost nothing.
type Matrix struct {
	Data            []float32
	Row, Col, Batch int
}

// RowMajor returns the view of contiguous rows of n elements, with items of m rows.
func RowMajor(data []float32, m, n int) Matrix {
	return Matrix{Data: data, Row: n, Col: 1, Batch: m * n}
}

// T returns the transposed view.
func (m Matrix) T() Matrix { return Matrix{Data: m.Data, Row: m.Col, Col: m.Row, Batch: m.Batch} }

// check panics unless the view of batch items of rows x cols lies in Data.
func (m Matrix) check(name string, batch, rows, cols int) {
	if batch == 0 || rows == 0 || cols == 0 {
		return
	}
	last := (batch-1)*m.Batch + (rows-1)*m.Row + (cols-1)*m.Col
	if m.Row < 0 || m.Col < 0 || m.Batch < 0 || last >= len(m.Data) {
		panic(fmt.Sprintf("kernel: matrix %s of %d x %d x %d with strides %d, %d, %d does not fit in %d elements",
			name, batch, rows, cols, m.Batch, m.Row, m.Col, len(m.Data)))
	}
}

// panels packs one operand of a product into panels for the micro-kernel. A panel is width rows of A (or columns of B)
// side by side, for a run of k: dst[p*width+i] is element (first+i, k0+p), i < count <= width, p < kn. What stands
// beyond count is never used. dst has room for kn*width+packSlack floats, and the slack may be overwritten.
type panels interface {
	pack(dst []float32, width, first, count, k0, kn int)
}

// packSlack is how far packing may write past a panel: transposing moves eight rows, whatever the width.
const packSlack = 8

// stridedPanels are the panels of a matrix: element (i, p) is data[i*across + p*along].
type stridedPanels struct {
	kern          *kernels
	data          []float32
	across, along int
	offs          [8]int // here, because what a kernel is passed through a func value must not be on the stack
}

func (s *stridedPanels) pack(dst []float32, width, first, count, k0, kn int) {
	if kn == 0 {
		return
	}
	src := s.data[first*s.across+k0*s.along:]
	if s.across == 1 && count == width {
		if f := s.kern.copyRows[width]; f != nil {
			_ = src[(kn-1)*s.along+width-1]
			f(&dst[0], &src[0], s.along, kn)
			return
		}
	}
	if s.along == 1 && s.kern.transpose8 != nil && kn >= 8 {
		done := kn &^ 7
		_ = src[(count-1)*s.across+kn-1]
		// The highest eight rows first: when width is no multiple of 8, a group spills into the rows below of the next k.
		for lo := (width - 1) &^ 7; lo >= 0; lo -= 8 {
			if lo >= count {
				continue
			}
			for i := range s.offs {
				s.offs[i] = min(lo+i, count-1) * s.across
			}
			s.kern.transpose8(&dst[lo], width, &src[0], &s.offs[0], done/8)
		}
		for i := range count {
			row := src[i*s.across:]
			for p := done; p < kn; p++ {
				dst[p*width+i] = row[p]
			}
		}
		return
	}
	for p := range kn {
		out := dst[p*width : p*width+count]
		at := p * s.along
		for i := range out {
			out[i] = src[at]
			at += s.across
		}
	}
}
