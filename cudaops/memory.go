package cudaops

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// Memory is a piece of a card's memory. Make one with [Alloc], give it back with
// [Memory.Free].
type Memory struct {
	device int
	len    int64
	alloc  *allocator

	// mu lets no Free come between a Read or Write and its bytes.
	mu    sync.RWMutex
	block *block // nil if len is 0
	freed bool

	early atomic.Bool // written early, at least once
}

// Alloc takes bytes of the card's memory, aligned to 64 bytes at least and not
// zeroed. Zero bytes take none. It fails with an [*OutOfMemoryError] when caps or
// card do not allow it.
func Alloc(device int, bytes int64) (*Memory, error) {
	c, err := lookup(device)
	if err != nil {
		return nil, err
	}
	if bytes < 0 {
		return nil, fmt.Errorf("cudaops: allocate %d bytes on %s: must be 0 or more", bytes, String(device))
	}
	m := &Memory{device: device, len: bytes, alloc: c.mem}
	if bytes > 0 {
		if m.block, err = c.mem.alloc(bytes); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Device is the logical number of the card.
func (m *Memory) Device() int { return m.device }

// Len is the length in bytes, as asked for.
func (m *Memory) Len() int64 { return m.len }

// Host is the bytes themselves where the host can address them, as on simulated
// cards; else, and after Free, it is nil. The slice must not be used after Free.
func (m *Memory) Host() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.freed {
		return nil
	}
	if m.block == nil {
		return []byte{}
	}
	host := m.block.seg.region.host()
	if host == nil {
		return nil
	}
	end := m.block.off + m.len
	return host[m.block.off:end:end]
}

// Write copies src to the bytes from off on. On a real card it returns when src
// may change; what was given to the card later finds the bytes there.
func (m *Memory) Write(off int64, src []byte) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.check("write", off, len(src)); err != nil || len(src) == 0 {
		return err
	}
	if err := m.block.seg.region.write(m.block.off+off, src); err != nil {
		return fmt.Errorf("cudaops: write %d bytes to %s: %w", len(src), String(m.device), err)
	}
	return nil
}

// Clear sets all bytes to 0. On a real card that is in the order of the card's work.
func (m *Memory) Clear() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.check("clear", 0, int(m.len)); err != nil || m.len == 0 {
		return err
	}
	r, real := m.block.seg.region.(*realRegion)
	if !real {
		clear(m.block.seg.region.host()[m.block.off:][:m.len])
		return nil
	}
	if err := r.owner.transfer.clear(r.addr+cuda.Ptr(m.block.off), int(m.len)); err != nil {
		return fmt.Errorf("cudaops: clear %d bytes on %s: %w", m.len, String(m.device), err)
	}
	return nil
}

// WriteEarly is [Memory.Write] beside the work that the card was given before, not
// after it. So what is written early is not for that work, nor for programs: it
// reaches their memory by CopyFrom, which waits for it, and for which later early
// writes wait. Of memory that was written early nothing else may be asked but to be
// freed.
func (m *Memory) WriteEarly(off int64, src []byte) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.check("write", off, len(src)); err != nil || len(src) == 0 {
		return err
	}
	r, real := m.block.seg.region.(*realRegion)
	if !real {
		return m.block.seg.region.write(m.block.off+off, src)
	}
	if err := r.owner.transfer.writeEarly(r.addr+cuda.Ptr(m.block.off+off), src, &m.early); err != nil {
		return fmt.Errorf("cudaops: write %d bytes early to %s: %w", len(src), String(m.device), err)
	}
	return nil
}

// Read copies the bytes from off on to dst and fills it. On a real card it waits
// for the work that was given to it before.
func (m *Memory) Read(off int64, dst []byte) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.check("read", off, len(dst)); err != nil || len(dst) == 0 {
		return err
	}
	if err := m.block.seg.region.read(dst, m.block.off+off); err != nil {
		return fmt.Errorf("cudaops: read %d bytes from %s: %w", len(dst), String(m.device), err)
	}
	return nil
}

// CopyFrom copies the first n bytes of src, memory of the same card, to the
// beginning of m. On a real card it returns before the bytes are there, but in the
// order of the card's work.
func (m *Memory) CopyFrom(src ir.DeviceMemory, n int64) error {
	from, ok := src.(*Memory)
	switch {
	case !ok || from.device != m.device:
		return fmt.Errorf("cudaops: copy to %s: the source is not memory of this card", String(m.device))
	case from == m || n == 0:
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	from.mu.RLock()
	defer from.mu.RUnlock()
	if err := from.check("copy from memory", 0, int(n)); err != nil {
		return err
	}
	if err := m.check("copy to memory", 0, int(n)); err != nil {
		return err
	}
	r, real := m.block.seg.region.(*realRegion)
	if !real {
		copy(m.block.seg.region.host()[m.block.off:], from.block.seg.region.host()[from.block.off:][:n])
		return nil
	}
	to, at := r.addr+cuda.Ptr(m.block.off), from.block.seg.region.(*realRegion).addr+cuda.Ptr(from.block.off)
	if err := r.owner.transfer.copy(to, at, int(n), from.early.Load()); err != nil {
		return fmt.Errorf("cudaops: copy %d bytes on %s: %w", n, String(m.device), err)
	}
	return nil
}

func (m *Memory) check(what string, off int64, n int) error {
	if m.freed {
		return fmt.Errorf("cudaops: %s on %s: %w", what, String(m.device), ErrFreed)
	}
	if off < 0 || off > m.len || n < 0 || int64(n) > m.len-off {
		return fmt.Errorf("cudaops: %s on %s: %d bytes at offset %d are outside memory of %d bytes", what, String(m.device), n, off, m.len)
	}
	return nil
}

// address is where the memory is on a real card, 0 if it has no bytes.
func (m *Memory) address() (cuda.Ptr, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.freed {
		return 0, ErrFreed
	}
	if m.block == nil {
		return 0, nil
	}
	return m.block.address()
}

// Free gives the memory back to the card's allocator, which keeps it for later
// requests. Work that uses the memory must be done; writes and copies may be on
// their way. A second Free fails with [ErrFreed].
func (m *Memory) Free() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed {
		return fmt.Errorf("cudaops: free on %s: %w", String(m.device), ErrFreed)
	}
	m.freed = true
	if m.block == nil {
		return nil
	}
	var err error
	if m.early.Load() {
		// Who gets the memory next knows the card's order only.
		if err = m.block.seg.region.(*realRegion).owner.transfer.settleEarly(); err != nil {
			err = fmt.Errorf("cudaops: free on %s: %w", String(m.device), err)
		}
	}
	m.alloc.put(m.block)
	return err
}

// EmptyCache gives the memory that the allocators of cards hold but do not use
// back to the cards. With no device named it is that of every visible card.
func EmptyCache(devices ...int) error {
	s, err := use()
	if err != nil {
		return err
	}
	chosen, err := s.choose(devices)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range chosen {
		errs = append(errs, c.mem.emptyCache())
	}
	return errors.Join(errs...)
}

// MemGetInfo is the card's free and total memory in bytes, all processes counted
// and caps not.
func MemGetInfo(device int) (free, total int64, err error) {
	c, err := lookup(device)
	if err != nil {
		return 0, 0, err
	}
	free, total, err = c.drv.memInfo(c.logical)
	if err != nil {
		return 0, 0, fmt.Errorf("cudaops: memory of %s: %w", String(device), err)
	}
	return free, total, nil
}
