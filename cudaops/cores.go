package cudaops

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// What one core copies at a time, and how many share a transfer: by then memory
// gives as much as the bus takes.
const (
	coreBytes = int(256 * kib)
	mostCores = 16
)

// cores copy bytes for one transfer. They stay awake until it ends.
type cores struct {
	parts chan part // nil: the caller copies by itself
	ended sync.WaitGroup
}

// part is what one core copies at a time.
type part struct {
	dst, src []byte
	of       *filling
}

func (p part) copy() {
	copy(p.dst, p.src)
	p.of.left.Add(-1)
	p.of.done.Done()
}

// filling is a piece of a ring that cores copy to, or from.
type filling struct {
	piece, n int
	left     atomic.Int32 // parts
	done     sync.WaitGroup
}

func (f *filling) isDone() bool { return f.left.Load() == 0 }

// newCores wakes as many cores as n bytes are worth, beside the caller's.
func newCores(n int) *cores {
	c := new(cores)
	count := min(n/coreBytes, mostCores, runtime.GOMAXPROCS(0)) - 1
	if count < 1 {
		return c
	}
	c.parts = make(chan part, longPieces*longBytes/coreBytes)
	for range count {
		c.ended.Go(func() {
			for p := range c.parts {
				p.copy()
			}
		})
	}
	return c
}

// copy begins to copy src to dst, one of which is in a piece.
func (c *cores) copy(piece int, dst, src []byte) *filling {
	f := &filling{piece: piece, n: len(src)}
	if c.parts == nil {
		copy(dst, src)
		return f
	}
	for len(src) > 0 {
		n := min(len(src), coreBytes)
		f.left.Add(1)
		f.done.Add(1)
		c.parts <- part{dst[:n], src[:n], f}
		dst, src = dst[n:], src[n:]
	}
	return f
}

// wait helps until f is done.
func (c *cores) wait(f *filling) {
	for !f.isDone() {
		select {
		case p := <-c.parts:
			p.copy()
		default:
			f.done.Wait()
		}
	}
}

// end waits for what was begun, and lets the cores go.
func (c *cores) end() {
	if c.parts != nil {
		close(c.parts)
		c.ended.Wait()
	}
}
