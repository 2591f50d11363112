package cudaops

import (
	"errors"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// address is where a block of a real card is.
func (b *block) address() (cuda.Ptr, error) {
	r, real := b.seg.region.(*realRegion)
	if !real {
		return 0, errors.New("it is not memory of a real card")
	}
	return r.addr + cuda.Ptr(b.off), nil
}

// withinCaps is an [*OutOfMemoryError] where the process holds more than a cap
// allows and emptying the cache does not help.
func (a *allocator) withinCaps() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	room, err := a.headroom()
	if err != nil || room >= 0 {
		return err
	}
	if err := a.releaseCached(); err != nil {
		return err
	}
	if room, err = a.headroom(); err != nil || room >= 0 {
		return err
	}
	a.stats.OOMs++
	return a.outOfMemory(-room)
}
