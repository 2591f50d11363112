package cudaops

import (
	"runtime"
	"sync"
)

// What one core copies at a time, and how many are worth waking: memory has no
// more to give.
const (
	coreBytes = int(256 * kib)
	mostCores = 8
)

// cores copy bytes for one transfer. They stay awake until it ends.
type cores struct {
	parts chan part // nil: the caller copies by itself
	ended sync.WaitGroup
}

// part is what one core copies at a time.
type part struct {
	dst, src []byte
	done     *sync.WaitGroup
}

// filling is a piece of memory that cores copy to.
type filling struct {
	piece, n int
	done     sync.WaitGroup
}

// newCores wakes as many cores as n bytes are worth.
func newCores(n int) *cores {
	c := new(cores)
	count := min(n/coreBytes, mostCores, runtime.GOMAXPROCS(0))
	if count < 2 {
		return c
	}
	c.parts = make(chan part, 2*longBytes/coreBytes)
	for range count {
		c.ended.Go(func() {
			for p := range c.parts {
				copy(p.dst, p.src)
				p.done.Done()
			}
		})
	}
	return c
}

// copy begins to copy src to dst, which is in a piece.
func (c *cores) copy(piece int, dst, src []byte) *filling {
	f := &filling{piece: piece, n: len(src)}
	if c.parts == nil {
		copy(dst, src)
		return f
	}
	for len(src) > 0 {
		n := min(len(src), coreBytes)
		f.done.Add(1)
		c.parts <- part{dst[:n], src[:n], &f.done}
		dst, src = dst[n:], src[n:]
	}
	return f
}

// end waits for what was begun, and lets the cores go.
func (c *cores) end() {
	if c.parts != nil {
		close(c.parts)
		c.ended.Wait()
	}
}
