package cudaops

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// What one core copies at a time, and how many share a transfer: eight copy
// faster than the bus.
const (
	coreBytes = int(128 * kib)
	mostCores = 8
)

// crew copies the bytes of one transfer, between pieces of a ring and memory that
// is not pinned, on several cores: the caller's and others, which stay awake
// until it ends or has nothing to copy.
type crew struct {
	bytes int // of the transfer
	piece int // bytes; a multiple of coreBytes, or all
	copy  func(lo, hi int)

	next atomic.Int64   // byte that nobody has begun to copy
	open atomic.Int64   // bytes that may be copied
	left []atomic.Int64 // bytes of each piece that are not copied yet

	mu   sync.Mutex
	more *sync.Cond // open has changed, or over
	over bool
	all  sync.WaitGroup
}

// newCrew wakes as many cores as the transfer is worth. copy copies bytes lo to hi
// of it, which lie in one piece.
func newCrew(bytes, piece int, copy func(lo, hi int)) *crew {
	c := &crew{bytes: bytes, piece: piece, copy: copy, left: make([]atomic.Int64, (bytes+piece-1)/piece)}
	for i := range c.left {
		c.left[i].Store(int64(min(piece, bytes-i*piece)))
	}
	c.more = sync.NewCond(&c.mu)
	for range min(bytes/coreBytes, mostCores, runtime.GOMAXPROCS(0)) - 1 {
		c.all.Go(c.help)
	}
	return c
}

// allow lets the first pieces be copied, as many as that.
func (c *crew) allow(pieces int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.Store(int64(min(pieces*c.piece, c.bytes)))
	c.more.Broadcast()
}

// work copies something, if there is something to begin with.
func (c *crew) work() bool {
	for {
		at := c.next.Load()
		if at >= c.open.Load() {
			return false
		}
		to := min(at+int64(coreBytes), int64(c.bytes))
		if c.next.CompareAndSwap(at, to) {
			c.copy(int(at), int(to))
			c.left[int(at)/c.piece].Add(at - to)
			return true
		}
	}
}

// help works until there is nothing left to begin with.
func (c *crew) help() {
	for {
		for c.work() {
		}
		c.mu.Lock()
		for c.next.Load() >= c.open.Load() && c.next.Load() < int64(c.bytes) && !c.over {
			c.more.Wait()
		}
		over := c.next.Load() >= int64(c.bytes) || c.over
		c.mu.Unlock()
		if over {
			return
		}
	}
}

// copied reports whether a piece is copied.
func (c *crew) copied(piece int) bool { return c.left[piece].Load() == 0 }

// finish works until a piece is copied. What is left of it then is in others'
// hands for some microseconds: less than it would take to wake up again.
func (c *crew) finish(piece int) {
	for !c.copied(piece) {
		if !c.work() {
			runtime.Gosched()
		}
	}
}

// end lets the cores go, when they have copied what they have begun with.
func (c *crew) end() {
	c.mu.Lock()
	c.over = true
	c.open.Store(0)
	c.more.Broadcast()
	c.mu.Unlock()
	c.all.Wait()
}
