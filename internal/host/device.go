package host

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// Device is the CPU as an [ir.Device]. Simulated cards embed one and bring their own memory.
type Device struct {
	pool *kernel.Pool
}

var _ ir.Device = (*Device)(nil)

// Open returns the host with that many threads; none or fewer means GOMAXPROCS.
func Open(threads int) *Device {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	return &Device{pool: kernel.NewPool(threads)}
}

// ID returns -1.
func (d *Device) ID() int { return -1 }

// String returns "cpu".
func (d *Device) String() string { return "cpu" }

// Alloc returns n bytes of Go memory that start on a cache line.
func (d *Device) Alloc(n int64) (ir.DeviceMemory, error) {
	if n < 0 {
		return nil, fmt.Errorf("host: alloc: %d bytes", n)
	}
	return &block{b: aligned(int(n))}, nil
}

// Load prepares p to run on memories of this device, or of any whose bytes the host can address, as a simulated card's. It writes
// the program's constants into their region.
func (d *Device) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	var b [ir.NumRegions][]byte
	for r, m := range mem {
		if m == nil {
			continue
		}
		if b[r] = m.Host(); b[r] == nil && m.Len() > 0 {
			return nil, fmt.Errorf("host: %s: load: region %s is not host memory", p.Name, ir.Region(r))
		}
	}
	e, err := load(p, b, d.pool)
	if err != nil {
		return nil, err // not a nil *Exec in the interface
	}
	return e, nil
}

// Close stops the device's threads. Its executables must not run any more.
func (d *Device) Close() error {
	d.pool.Close()
	return nil
}

// line is the size of a cache line, and of the widest vector.
const line = 64

// aligned returns n bytes that start on a cache line.
func aligned(n int) []byte {
	b := make([]byte, n+line-1)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % line
	return b[skip : skip+uintptr(n) : skip+uintptr(n)]
}

// floats returns n float32 that start on a cache line.
func floats(n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(aligned(4*n)))), n)
}

// block is a block of host memory.
type block struct {
	b     []byte
	freed bool
}

var errFreed = errors.New("host: memory: used after Free")

func (m *block) Len() int64   { return int64(len(m.b)) }
func (m *block) Host() []byte { return m.b }

func (m *block) Write(off int64, src []byte) error {
	if err := m.check("write", off, len(src)); err != nil {
		return err
	}
	copy(m.b[off:], src)
	return nil
}

func (m *block) Read(off int64, dst []byte) error {
	if err := m.check("read", off, len(dst)); err != nil {
		return err
	}
	copy(dst, m.b[off:])
	return nil
}

func (m *block) Clear() error {
	if m.freed {
		return errFreed
	}
	clear(m.b)
	return nil
}

func (m *block) check(what string, off int64, n int) error {
	if m.freed {
		return errFreed
	}
	if off < 0 || off > int64(len(m.b)) || int64(n) > int64(len(m.b))-off {
		return fmt.Errorf("host: %s: %d bytes at %d of a block of %d", what, n, off, len(m.b))
	}
	return nil
}

func (m *block) Free() error {
	if m.freed {
		return errFreed
	}
	m.b, m.freed = nil, true
	return nil
}
