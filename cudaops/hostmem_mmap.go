//go:build !race && (linux || darwin)

package cudaops

import "syscall"

// hostMap takes host memory for simulated cards, page-aligned, straight from the
// operating system: pages cost nothing until they are written to, they go back
// at once, a failure is an error, and the garbage collector, which sets its pace
// by the size of the heap, does not see them.
func hostMap(bytes int64) ([]byte, error) {
	return syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
}

func hostUnmap(mem []byte) error { return syscall.Munmap(mem) }
