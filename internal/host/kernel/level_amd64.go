//go:build !noasm

package kernel

import (
	"fmt"

	"golang.org/x/sys/cpu"
)

var bestLevel = detect()

func detect() Level {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA || !x.HasBMI2:
		return Go
	case !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ || !x.HasAVX512VL:
		return AVX2
	}
	return AVX512
}

var avx2Level = kernels{
	level: AVX2, mr: 6, nr: 16, gemm: avx2Gemm6,
	narrow: 4, gemmNarrow: avx2Gemm4,
	vector:     newVector(&avx2Kernels),
	copyRows:   map[int]copyRowsFunc{4: avx2CopyRows4, 6: avx2CopyRows6, 16: avx2CopyRows16},
	transpose8: avx2Transpose8, gatherRows: avx2GatherRows, segmentRows: avx2SegmentRows,
	maxPairs: avx2MaxPairs, maxPairsGrad: avx2MaxPairsGrad,
	peak: avx2Peak, peakFlops: 12 * 8 * 2,
}

var avx512Level = kernels{
	level: AVX512, mr: 14, nr: 32, gemm: avx512Gemm14,
	narrow: 8, gemmNarrow: avx512Gemm8,
	vector:     newVector(&avx512Kernels),
	copyRows:   map[int]copyRowsFunc{8: avx512CopyRows8, 14: avx512CopyRows14, 32: avx512CopyRows32},
	transpose8: avx2Transpose8, gatherRows: avx512GatherRows, segmentRows: avx512SegmentRows,
	maxPairs: avx2MaxPairs, maxPairsGrad: avx2MaxPairsGrad,
	peak: avx512Peak, peakFlops: 12 * 16 * 2,
}

func levelKernels(l Level) *kernels {
	if l > bestLevel {
		panic(fmt.Sprintf("kernel: level %v on a CPU that has only %v", l, bestLevel))
	}
	return [...]*kernels{Go: &goLevel, AVX2: &avx2Level, AVX512: &avx512Level}[l]
}
