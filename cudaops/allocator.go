package cudaops

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Sizes of the caching allocator, in bytes. They are PyTorch's, so that numbers
// compare.
const (
	blockUnit    = 512      // sizes of blocks are multiples of this
	smallRequest = mib      // up to this a request is served from the small pool,
	smallSegment = 2 * mib  // whose segments have this size;
	largeRequest = 10 * mib // below this it shares
	largeSegment = 20 * mib // a segment of this size; from it on it gets one of its own,
	segmentUnit  = 2 * mib  // a multiple of this
)

// maxRequest bounds sizes, so that rounding them up cannot overflow. No card has
// so much.
const maxRequest = maxSize

// pool tells small requests' segments from large ones', so that small blocks do
// not cut large segments to pieces.
type pool int

const (
	smallPool pool = iota
	largePool
)

func poolOf(size int64) pool {
	if size <= smallRequest {
		return smallPool
	}
	return largePool
}

// segmentSize is the preferred size of a new segment for a block of this size.
func segmentSize(size int64) int64 {
	switch {
	case size <= smallRequest:
		return smallSegment
	case size < largeRequest:
		return largeSegment
	}
	return roundUp(size, segmentUnit)
}

// segment is a piece of card memory from the driver, cut into blocks that cover
// it without gaps.
type segment struct {
	region region
	serial int64 // segments in order of creation
	bytes  int64
	pool   pool
	first  *block
	used   int64 // bytes from here on have never been in a block in use
}

// block is a part of a segment: in use, or free and then in allocator.free.
// Of two neighbours at least one is in use.
type block struct {
	seg        *segment
	off, size  int64
	prev, next *block
	requested  int64 // bytes asked for, if in use
	inUse      bool
}

// whole is whether the block is all of its segment.
func (b *block) whole() bool { return b.size == b.seg.bytes }

// order sorts blocks by size, then age of the segment, then offset: the first one
// that is large enough is the best fit, and the same in every run.
func (b *block) order(c *block) int {
	return cmp.Or(cmp.Compare(b.size, c.size), cmp.Compare(b.seg.serial, c.seg.serial), cmp.Compare(b.off, c.off))
}

// allocator is the caching allocator of one card. It takes segments from the
// driver, within the caps, and keeps them until they are wanted back.
type allocator struct {
	drv   driver
	card  int
	total int64 // the card's memory

	mu       sync.Mutex
	caps     caps
	segments []*segment  // by serial
	free     [2][]*block // of each pool, sorted by order
	serials  int64
	stats    Stats
}

func newAllocator(drv driver, card int, variable *amount) *allocator {
	return &allocator{
		drv:   drv,
		card:  card,
		total: drv.cards()[card].props.TotalMemory,
		caps:  caps{variable: variable},
	}
}

// setCaps changes the caps. Where more is held than they allow, what is cached
// goes back.
func (a *allocator) setCaps(set func(*caps)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	set(&a.caps)
	if err := tellLimit(a.drv.cards()[a.card].props.UUID, a.caps.limit(a.total)); err != nil {
		return err
	}
	if a.stats.All.ReservedBytes.Current == 0 {
		return nil // and nobody asks for what else is there, which would make a context
	}
	missing, err := a.missing()
	if err == nil && missing > 0 {
		err = a.releaseCached()
	}
	if err != nil {
		return fmt.Errorf("cudaops: lower the memory limit of %s: %w", String(a.card), err)
	}
	return nil
}

func (a *allocator) limit() Limit { return a.limits()[0] }

func (a *allocator) limits() []Limit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.caps.all(a.total)
}

// alloc gives a block of at least bytes > 0.
func (a *allocator) alloc(bytes int64) (*block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := roundUp(min(bytes, maxRequest), blockUnit)
	b, err := a.find(size)
	if err != nil {
		return nil, fmt.Errorf("cudaops: allocate %s on %s: %w", formatSize(bytes), String(a.card), err)
	}
	if b == nil {
		a.stats.OOMs++
		return nil, a.outOfMemory(bytes)
	}
	a.take(b, size, bytes)
	return b, nil
}

// find looks for a free block of at least size bytes: in the request's pool, in a
// new segment, in a new segment after cached ones were given back, and at last in
// the other pool. It gives nil when there is none.
func (a *allocator) find(size int64) (*block, error) {
	p := poolOf(size)
	if b := a.fit(p, size); b != nil {
		return b, nil
	}
	if b, err := a.newSegment(size); b != nil || err != nil {
		return b, err
	}
	a.stats.AllocRetries++
	if err := a.releaseCached(); err != nil {
		return nil, err
	}
	if b, err := a.newSegment(size); b != nil || err != nil {
		return b, err
	}
	return a.fit(1-p, size), nil
}

// fit is the smallest free block of the pool that has size bytes, or nil.
func (a *allocator) fit(p pool, size int64) *block {
	i, _ := slices.BinarySearchFunc(a.free[p], size, func(b *block, size int64) int { return cmp.Compare(b.size, size) })
	if i == len(a.free[p]) {
		return nil
	}
	return a.free[p][i]
}

// newSegment takes a segment for a block of this size from the driver: of the
// preferred size or, where caps or card have no room for that, just as large as
// needed. It gives the segment's one block, free, or nil when there is no room.
func (a *allocator) newSegment(size int64) (*block, error) {
	want, exact := segmentSize(size), roundUp(size, a.drv.granularity())
	for _, bytes := range []int64{max(want, exact), exact} {
		headroom, err := a.headroom()
		if err != nil {
			return nil, err
		}
		if bytes > headroom {
			continue
		}
		r, err := a.drv.malloc(a.card, bytes)
		if errors.Is(err, errCardFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return a.addSegment(r, bytes, poolOf(size)), nil
	}
	return nil, nil
}

// headroom is how many bytes more the caps allow this process to hold. It is
// negative when a cap was set below what is held. Without a cap the card itself
// says when it is full, and nobody asks what else the process holds, which takes
// longer than the segment itself. What the driver may take by itself later is left.
func (a *allocator) headroom() (int64, error) {
	limit := a.caps.limit(a.total)
	if limit.Source == LimitByCard {
		return maxSize, nil
	}
	overhead, err := a.drv.overhead(a.card)
	return limit.Bytes - a.stats.All.ReservedBytes.Current - overhead - a.drv.spare(), err
}

// overhead is how many bytes the process holds beside the allocator, whose segments must not change while the driver is asked.
func (a *allocator) overhead() (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.drv.overhead(a.card)
}

// withinCaps is an [*OutOfMemoryError] where the process holds more than a cap
// allows and emptying the cache does not help.
func (a *allocator) withinCaps() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	missing, err := a.missing()
	if err != nil || missing <= 0 {
		return err
	}
	if err := a.releaseCached(); err != nil {
		return err
	}
	if missing, err = a.missing(); err != nil || missing <= 0 {
		return err
	}
	a.stats.OOMs++
	return a.outOfMemory(missing)
}

// missing is how much the process holds beyond its cap, or not above 0. The
// driver may have what is spare.
func (a *allocator) missing() (int64, error) {
	room, err := a.headroom()
	if room == maxSize {
		return 0, err
	}
	return -room - a.drv.spare(), err
}

func (a *allocator) addSegment(r region, bytes int64, p pool) *block {
	a.serials++
	s := &segment{region: r, serial: a.serials, bytes: bytes, pool: p}
	s.first = &block{seg: s, size: bytes}
	a.segments = append(a.segments, s)
	a.insert(s.first)
	for _, st := range a.stats.scopes(p) {
		st.Segments.increase(1)
		st.ReservedBytes.increase(bytes)
	}
	return s.first
}

// take cuts size bytes from the front of a free block and marks them in use.
func (a *allocator) take(b *block, size, requested int64) {
	a.remove(b)
	if b.size > size {
		rest := &block{seg: b.seg, off: b.off + size, size: b.size - size, prev: b, next: b.next}
		if rest.next != nil {
			rest.next.prev = rest
		}
		b.size, b.next = size, rest
		a.insert(rest)
	}
	b.inUse, b.requested = true, requested
	if stale := min(b.off+size, b.seg.used) - b.off; stale > 0 {
		b.seg.region.recycle(b.off, stale)
	}
	b.seg.used = max(b.seg.used, b.off+size)
	for _, st := range a.stats.scopes(b.seg.pool) {
		st.Allocations.increase(1)
		st.AllocatedBytes.increase(size)
		st.RequestedBytes.increase(requested)
	}
}

// put takes a block in use back and joins it with free neighbours.
func (a *allocator) put(b *block) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !b.inUse {
		panic("cudaops: block freed twice")
	}
	for _, st := range a.stats.scopes(b.seg.pool) {
		st.Allocations.decrease(1)
		st.AllocatedBytes.decrease(b.size)
		st.RequestedBytes.decrease(b.requested)
	}
	b.inUse, b.requested = false, 0
	if n := b.next; n != nil && !n.inUse {
		a.remove(n)
		b.absorbNext()
	}
	if p := b.prev; p != nil && !p.inUse {
		a.remove(p)
		p.absorbNext()
		b = p
	}
	a.insert(b)
}

// absorbNext adds the next block to this one; neither is in a free list.
func (b *block) absorbNext() {
	b.size += b.next.size
	b.next = b.next.next
	if b.next != nil {
		b.next.prev = b
	}
}

func (a *allocator) insert(b *block) {
	list := &a.free[b.seg.pool]
	i, _ := slices.BinarySearchFunc(*list, b, (*block).order)
	*list = slices.Insert(*list, i, b)
}

func (a *allocator) remove(b *block) {
	list := &a.free[b.seg.pool]
	i, found := slices.BinarySearchFunc(*list, b, (*block).order)
	if !found {
		panic("cudaops: free block is not in its list")
	}
	*list = slices.Delete(*list, i, i+1)
}

// emptyCache gives segments without a block in use back to the driver.
func (a *allocator) emptyCache() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.releaseCached(); err != nil {
		return fmt.Errorf("cudaops: empty cache of %s: %w", String(a.card), err)
	}
	return nil
}

// releaseCached is emptyCache for those who hold the lock. A segment that the
// driver refuses to take back is no longer used, but all others go back.
func (a *allocator) releaseCached() error {
	var errs []error
	a.segments = slices.DeleteFunc(a.segments, func(s *segment) bool {
		if s.first.inUse || !s.first.whole() {
			return false
		}
		a.remove(s.first)
		for _, st := range a.stats.scopes(s.pool) {
			st.Segments.decrease(1)
			st.ReservedBytes.decrease(s.bytes)
		}
		if err := s.region.release(); err != nil {
			errs = append(errs, fmt.Errorf("give back %s: %w", formatSize(s.bytes), err))
		}
		return true
	})
	return errors.Join(errs...)
}

func (a *allocator) statistics() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	for _, list := range a.free {
		for _, b := range list {
			if !b.whole() {
				s.InactiveSplitBytes += b.size
			}
		}
	}
	return s
}

func (a *allocator) resetPeaks() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.resetPeaks()
}

// contextMissing is an [*OutOfMemoryError] for a card that has no room for a context.
func (a *allocator) contextMissing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.outOfMemory(0)
}

// outOfMemory describes why a request for bytes failed. The cache is empty.
func (a *allocator) outOfMemory(bytes int64) error {
	noContext := a.drv.noContext(a.card)
	free, total, err := a.drv.memInfo(a.card)
	if err != nil && noContext { // nor does NVML tell
		free, total, err = UnknownBytes, a.total, nil
	}
	if err != nil {
		return fmt.Errorf("cudaops: allocate %s on %s: out of memory, and the card's free memory is unknown: %w", formatSize(bytes), String(a.card), err)
	}
	overhead, err := a.drv.overhead(a.card)
	if err != nil {
		return fmt.Errorf("cudaops: allocate %s on %s: out of memory, and what else this process holds is unknown: %w", formatSize(bytes), String(a.card), err)
	}
	all := &a.stats.All
	e := &OutOfMemoryError{
		Device:              a.card,
		Name:                a.drv.cards()[a.card].props.Name,
		Requested:           bytes,
		Total:               total,
		Free:                free,
		Limit:               a.caps.limit(a.total),
		Allocated:           all.AllocatedBytes.Current,
		ReservedUnallocated: all.ReservedBytes.Current - all.AllocatedBytes.Current,
		Overhead:            overhead,
		NoContext:           noContext,
		Others:              a.drv.others(a.card),
	}
	if noContext {
		return e // and nothing is held, nor would fit
	}
	headroom := free
	if e.Limit.Source != LimitByCard {
		headroom = min(headroom, e.Limit.Bytes-all.ReservedBytes.Current-overhead-a.drv.spare())
	}
	e.Largest = max(0, roundDown(headroom, a.drv.granularity()))
	for _, list := range a.free {
		if n := len(list); n > 0 {
			e.Largest = max(e.Largest, list[n-1].size)
		}
	}
	return e
}
