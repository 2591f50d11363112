package cudaops

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/internal/ir"
)

// realDevice is a real card as a device that runs programs.
type realDevice struct {
	card *card
	cuda *cuda.Card
	work *workMemory
	link *link        // to the other ranks' cards, or nil
	left leftovers    // of links before
	kept func() error // lets go of the libraries; nil before Weigh
}

func openReal(c *card, r *realCard) (ir.Device, error) {
	var preparing sync.WaitGroup
	preparing.Go(exec.Prepare) // while the card makes a context
	shared, err := r.open()
	preparing.Wait()
	if isFull(err) {
		err = c.mem.contextMissing()
	}
	if err != nil {
		return nil, fmt.Errorf("cudaops: open %s: %w", String(c.logical), err)
	}
	d := &realDevice{card: c, work: &workMemory{alloc: c.mem, blocks: map[cuda.Ptr]*block{}}}
	own := *shared // context and stream are the same, memory is counted here
	own.UseMemory(d.work)
	d.cuda = &own
	return d, nil
}

func (d *realDevice) ID() int        { return d.card.logical }
func (d *realDevice) String() string { return String(d.card.logical) }

func (d *realDevice) Alloc(n int64) (ir.DeviceMemory, error) { return allocFor(d.card.logical, n) }

// Traits tells the compiler what programs for the card may make use of.
func (d *realDevice) Traits() ir.Traits { return exec.Traits }

// Load compiles p. Kernels and libraries take memory by themselves: where that
// exceeds a cap, it is an [*OutOfMemoryError] and p is not loaded.
func (d *realDevice) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	fail := func(err error) (ir.Executable, error) {
		return nil, fmt.Errorf("cudaops: load %s on %s: %w", p.Name, String(d.card.logical), err)
	}
	var at [ir.NumRegions]cuda.Ptr
	for r, m := range mem {
		if m == nil {
			continue
		}
		own, ok := m.(*Memory)
		if !ok || own.device != d.card.logical {
			return fail(fmt.Errorf("region %s is not memory of this card", ir.Region(r)))
		}
		if own.Len() < p.Bytes(ir.Region(r)) {
			return fail(fmt.Errorf("region %s has %d bytes, the program needs %d", ir.Region(r), own.Len(), p.Bytes(ir.Region(r))))
		}
		var err error
		if at[r], err = own.address(); err != nil {
			return fail(fmt.Errorf("region %s: %w", ir.Region(r), err))
		}
	}
	var l exec.Link
	if d.link != nil {
		l = d.link
	}
	e, err := exec.Load(d.cuda, p, at, l)
	if err != nil {
		return fail(err)
	}
	if err := d.card.mem.withinCaps(); err != nil {
		return fail(errors.Join(err, e.Close()))
	}
	return e, nil
}

// Weigh implements [ir.Weigher]. The card's libraries stay open from then on, so that what
// they hold is seen.
func (d *realDevice) Weigh(p *ir.Program) (likely, most int64, err error) {
	if d.kept == nil {
		d.kept, err = exec.Keep(d.cuda)
	}
	if err == nil {
		likely, most, err = exec.Size(d.cuda, p, d.link != nil)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("cudaops: weigh %s on %s: %w", p.Name, String(d.card.logical), err)
	}
	return likely, most, nil
}

// Close frees working memory that executables have left.
func (d *realDevice) Close() error {
	d.work.freeAll()
	if d.kept == nil {
		return nil
	}
	kept := d.kept
	d.kept = nil
	return kept()
}

// workMemory lets executables and libraries take their working memory from the
// card's allocator, so that caps and statistics count it.
type workMemory struct {
	alloc *allocator

	mu     sync.Mutex
	blocks map[cuda.Ptr]*block
}

func (w *workMemory) Alloc(bytes int64) (cuda.Ptr, error) {
	b, err := w.alloc.alloc(max(bytes, 1))
	if err != nil {
		return 0, err
	}
	p, err := b.address()
	if err != nil {
		w.alloc.put(b)
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blocks[p] = b
	return p, nil
}

func (w *workMemory) Free(p cuda.Ptr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.blocks[p]
	if b == nil {
		return fmt.Errorf("cudaops: free working memory at %#x: %w", p, ErrFreed)
	}
	delete(w.blocks, p)
	w.alloc.put(b)
	return nil
}

// Trim gives what is cached back to the driver.
func (w *workMemory) Trim() error { return w.alloc.emptyCache() }

func (w *workMemory) freeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, b := range w.blocks {
		delete(w.blocks, p)
		w.alloc.put(b)
	}
}

// address is where a block of a real card is.
func (b *block) address() (cuda.Ptr, error) {
	r, real := b.seg.region.(*realRegion)
	if !real {
		return 0, errors.New("it is not memory of a real card")
	}
	return r.addr + cuda.Ptr(b.off), nil
}
