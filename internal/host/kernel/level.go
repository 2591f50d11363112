package kernel

import "fmt"

// Level is an instruction set that kernels are written for.
type Level uint8

// The levels, lowest first.
const (
	Go     Level = iota // plain Go
	AVX2                // AVX2 and FMA
	AVX512              // AVX-512 F, BW, DQ and VL
)

// String returns the level's name.
func (l Level) String() string {
	switch l {
	case Go:
		return "go"
	case AVX2:
		return "avx2"
	case AVX512:
		return "avx512"
	}
	return fmt.Sprintf("Level(%d)", uint8(l))
}

// Best returns the highest level of this CPU and build.
func Best() Level { return bestLevel }

// Levels returns all levels of this CPU and build, lowest first.
func Levels() []Level {
	all := make([]Level, 0, bestLevel+1)
	for l := Go; l <= bestLevel; l++ {
		all = append(all, l)
	}
	return all
}

// kernels is what a level provides.
type kernels struct {
	level  Level
	mr, nr int // micro-tile of the matrix product: rows and columns
	gemm   gemmFunc
	// A second micro-kernel of fewer rows, for the last panels of a block, so that less of them is wasted; or none.
	narrow     int
	gemmNarrow gemmFunc
	vector     *Vector

	// Movers of panels; nil where the level has none. See package gen for what they do.
	copyRows    map[int]copyRowsFunc // by panel width
	transpose8  func(dst *float32, stride int, src *float32, offs *int, blocks int)
	gatherRows  func(dst, src *float32, rows *int32, n int, cols *int32)
	segmentRows func(dst, src *float32, rows *int32, n, shift int, first, second *int32)

	// maxPairs writes the largest of a[2i], a[2i+1], b[2i], b[2i+1] to dst[i], NaN if one is; maxPairsGrad writes dy[i] to
	// the place of the first such element in da or db, and 0 to the other three.
	maxPairs     func(dst, a, b []float32)
	maxPairsGrad func(da, db, a, b, dy []float32)

	// peak runs n rounds of independent multiply-adds, peakFlops floating-point operations each.
	peak      func(n int)
	peakFlops int
}

type copyRowsFunc = func(dst, src *float32, stride, n int)

// gemmFunc is a micro-kernel: c, a tile of mr x nr with row stride ldc, becomes the product of the packed panels
// a [k][mr] and b [k][nr]. Only the first rows rows are read and written. Then, in this order: + the old c (flagAdd),
// + rowBias[i] unless nil, + colBias[j] unless nil, max(x, 0) (flagReLU).
type gemmFunc = func(k int, a, b, c *float32, ldc, rows, flags int, rowBias, colBias *float32)

const (
	flagAdd  = 1
	flagReLU = 2
)

// fullRows returns how many of the first of m rows go in panels of mr rows, so that the rest in panels of narrow
// rows wastes least. (6 and 4 rows make any even number above 2.)
func (k *kernels) fullRows(m int) int {
	full, least := m, ceilDiv(m, k.mr)*k.mr
	if k.gemmNarrow == nil {
		return full
	}
	for panels := m / k.mr; panels >= max(0, m/k.mr-k.mr); panels-- {
		rows := panels * k.mr
		if total := rows + ceilDiv(m-rows, k.narrow)*k.narrow; total < least {
			full, least = rows, total
		}
	}
	return full
}

// panel returns the width and the micro-kernel of the panel that begins at row i, where those from row full on are narrow.
func (k *kernels) panel(i, full int) (width int, gemm gemmFunc) {
	if i < full {
		return k.mr, k.gemm
	}
	return k.narrow, k.gemmNarrow
}

var goLevel = kernels{
	level: Go, mr: goMR, nr: goNR, gemm: goGemm,
	vector: newVector(&goKernels),
	peak:   goPeak, peakFlops: goPeakFlops,
}

// PeakFMA runs about n floating-point operations as independent chains of multiply-adds in registers, the fastest that
// this core can go at level l, and returns how many it ran. Time it to know the peak.
func PeakFMA(l Level, n int) int {
	k := levelKernels(l)
	rounds := n/k.peakFlops + 1
	k.peak(rounds)
	return rounds * k.peakFlops
}
