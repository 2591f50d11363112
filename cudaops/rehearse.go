package cudaops

import (
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/internal/ir"
)

// Rehearsal is a copy of a card's allocator on which requests can be tried: it
// answers as the card would, and takes nothing. It shows the card as it was when
// [Rehearse] was called. It is for one goroutine.
type Rehearsal struct {
	device int
	alloc  *allocator
	blocks map[*block]*block // the card's and their copies
}

// Rehearse copies the state of the card's allocator.
func Rehearse(device int) (*Rehearsal, error) {
	c, err := lookup(device)
	if err != nil {
		return nil, err
	}
	r := &Rehearsal{device: device, blocks: map[*block]*block{}}
	if r.alloc, err = c.mem.rehearsal(r.blocks); err != nil {
		return nil, fmt.Errorf("cudaops: rehearse on %s: %w", String(device), err)
	}
	return r, nil
}

// Alloc does what [Alloc] would do: it returns nil or its error.
func (r *Rehearsal) Alloc(bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("cudaops: allocate %d bytes on %s: must be 0 or more", bytes, String(r.device))
	}
	if bytes == 0 {
		return nil
	}
	_, err := r.alloc.alloc(bytes)
	return err
}

// Load does what loading a program does on a real card when all of its memory is
// there: it returns nil, or the error that the process holds more than it may.
func (r *Rehearsal) Load() error {
	if _, real := r.alloc.drv.(*rehearsalDriver).driver.(*realDriver); !real {
		return nil
	}
	return r.alloc.withinCaps()
}

// Free does what m.Free would do. m was allocated on the card before the
// rehearsal began.
func (r *Rehearsal) Free(m *Memory) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	switch {
	case m.freed:
		return fmt.Errorf("cudaops: free on %s: %w", String(m.device), ErrFreed)
	case m.block == nil:
		return nil
	}
	b := r.blocks[m.block]
	if b == nil {
		return fmt.Errorf("cudaops: rehearse on %s: free: memory of %s that is not part of the rehearsal", String(r.device), String(m.device))
	}
	delete(r.blocks, m.block)
	r.alloc.put(b)
	return nil
}

// Unload does what e.Close() would do to the memory that e has besides its regions. e
// was loaded before the rehearsal began; what is no card's has none.
func (r *Rehearsal) Unload(e ir.Executable) error {
	x, real := e.(*exec.Exec)
	if !real {
		return nil
	}
	for b, twin := range r.blocks {
		if at, err := b.address(); err != nil || at != x.At() {
			continue
		}
		delete(r.blocks, b)
		r.alloc.put(twin)
		return nil
	}
	return fmt.Errorf("cudaops: rehearse on %s: unload: the program is none of this card's", String(r.device))
}

// EmptyCache does what [EmptyCache] would do on the card.
func (r *Rehearsal) EmptyCache() error { return r.alloc.emptyCache() }

// Allocated is the bytes in use, as [MemoryAllocated] would give them.
func (r *Rehearsal) Allocated() int64 { return r.alloc.stats.All.AllocatedBytes.Current }

// Reserved is the bytes held, in use or cached, as [MemoryReserved] would give
// them.
func (r *Rehearsal) Reserved() int64 { return r.alloc.stats.All.ReservedBytes.Current }

// Overhead is the bytes that the process holds beside the allocator: its context
// on the card, kernels and libraries, as far as they were there when the
// rehearsal began.
func (r *Rehearsal) Overhead() int64 { return r.alloc.drv.(*rehearsalDriver).over }

// rehearsal copies the allocator, and notes the copy of each block.
func (a *allocator) rehearsal(blocks map[*block]*block) (*allocator, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	free, _, err := a.drv.memInfo(a.card)
	if err != nil {
		return nil, err
	}
	if a.drv.noContext(a.card) {
		free = 0
	}
	over, err := a.drv.overhead(a.card)
	if err != nil {
		return nil, err
	}
	d := &rehearsalDriver{driver: a.drv, free: max(0, free-a.drv.spare()), over: over}
	c := &allocator{drv: d, card: a.card, total: a.total, caps: a.caps, serials: a.serials, stats: a.stats}
	for _, s := range a.segments {
		t := &segment{region: rehearsalRegion{d, s.bytes}, serial: s.serial, bytes: s.bytes, pool: s.pool, used: s.used}
		var last *block
		for b := s.first; b != nil; b = b.next {
			twin := *b
			twin.seg, twin.prev, twin.next = t, last, nil
			if last == nil {
				t.first = &twin
			} else {
				last.next = &twin
			}
			blocks[b], last = &twin, &twin
			if !twin.inUse {
				c.insert(&twin)
			}
		}
		c.segments = append(c.segments, t)
	}
	return c, nil
}

// rehearsalDriver counts where its driver gives memory.
type rehearsalDriver struct {
	driver
	free, over int64
}

func (d *rehearsalDriver) malloc(_ int, bytes int64) (region, error) {
	if bytes > d.free {
		return nil, errCardFull
	}
	d.free -= bytes
	return rehearsalRegion{d, bytes}, nil
}

func (d *rehearsalDriver) memInfo(card int) (free, total int64, err error) {
	return d.free, d.cards()[card].props.TotalMemory, nil
}

func (d *rehearsalDriver) overhead(int) (int64, error) { return d.over, nil }

// rehearsalRegion is memory that nobody has.
type rehearsalRegion struct {
	driver *rehearsalDriver
	bytes  int64
}

func (rehearsalRegion) host() []byte { return nil }

func (rehearsalRegion) write(int64, []byte) error { panic("cudaops: write in a rehearsal") }
func (rehearsalRegion) read([]byte, int64) error  { panic("cudaops: read in a rehearsal") }
func (rehearsalRegion) recycle(int64, int64)      {}

func (r rehearsalRegion) release() error {
	r.driver.free += r.bytes
	return nil
}
