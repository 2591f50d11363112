//go:build race || (!linux && !darwin)

package cudaops

import "unsafe"

// hostAlign is the alignment of simulated card memory, in bytes: a cache line.
const hostAlign = 64

// hostMap takes host memory for simulated cards from Go's heap: where memory
// cannot be mapped, and under the race detector, which watches the heap only.
func hostMap(bytes int64) ([]byte, error) {
	mem := make([]byte, bytes+hostAlign-1)
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % hostAlign)
	return mem[skip : skip+bytes : skip+bytes], nil
}

func hostUnmap([]byte) error { return nil }
