//go:build !linux && !darwin

package cudaops

import "unsafe"

// hostAlign is the alignment of simulated card memory, in bytes: a cache line.
const hostAlign = 64

// hostMap takes host memory for simulated cards from Go's heap.
func hostMap(bytes int64) ([]byte, error) {
	mem := make([]byte, bytes+hostAlign-1)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % hostAlign
	return mem[skip : int64(skip)+bytes : int64(skip)+bytes], nil
}

func hostUnmap([]byte) error { return nil }
