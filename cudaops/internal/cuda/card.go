package cuda

import (
	"errors"
	"fmt"
	"runtime"
)

// Card is a card in use: the driver, the card's primary context, and the one stream that all of its work goes into, so that transfers
// and programs are carried out in the order in which they were given.
//
// Goroutines may use a Card at once; what they put into the stream mixes as it comes. So a graph is captured on a stream of its own,
// which nobody else knows, and launched into Stream.
type Card struct {
	*API
	Ctx    Context
	Stream Stream

	Ordinal           int // logical number
	Major, Minor, SMs int // compute capability and number of multiprocessors

	device Device
	memory Memory
}

// Memory gives out a card's memory in place of the driver, to count it.
type Memory interface {
	Alloc(bytes int64) (Ptr, error)
	Free(p Ptr) error
	// Trim gives back to the driver what was freed and is kept for later.
	Trim() error
}

// OpenCard retains the primary context of the card with a logical number, and makes its stream.
func (a *API) OpenCard(ordinal int) (*Card, error) {
	c := &Card{API: a, Ordinal: ordinal}
	var err error
	if c.device, err = a.DeviceGet(ordinal); err != nil {
		return nil, err
	}
	for attribute, value := range map[int32]*int{
		ComputeCapabilityMajor: &c.Major, ComputeCapabilityMinor: &c.Minor, MultiprocessorCount: &c.SMs,
	} {
		if *value, err = a.DeviceAttribute(attribute, c.device); err != nil {
			return nil, err
		}
	}
	if c.Ctx, err = a.PrimaryCtxRetain(c.device); err != nil {
		return nil, err
	}
	err = c.Do(func() error {
		c.Stream, err = a.StreamCreate()
		return err
	})
	if err != nil {
		return nil, errors.Join(err, a.PrimaryCtxRelease(c.device))
	}
	return c, nil
}

// Do runs f on a thread on which the card's context is current. It may be called within another Do of the same card.
func (c *Card) Do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.CtxSetCurrent(c.Ctx); err != nil {
		return err
	}
	return f()
}

// UseMemory makes MemAlloc and MemFree take from m. It is called before anything else is.
func (c *Card) UseMemory(m Memory) { c.memory = m }

// MemAlloc takes bytes of the card's memory, from what UseMemory said or else from the driver.
func (c *Card) MemAlloc(bytes int64) (Ptr, error) {
	if c.memory == nil {
		return c.API.MemAlloc(bytes)
	}
	return c.memory.Alloc(bytes)
}

// MemFree gives back what MemAlloc gave. Work that uses it must be done.
func (c *Card) MemFree(p Ptr) error {
	if c.memory == nil {
		return c.API.MemFree(p)
	}
	return c.memory.Free(p)
}

// MemTrim gives memory that was freed, and that UseMemory's keeps, back to the driver.
func (c *Card) MemTrim() error {
	if c.memory == nil {
		return nil
	}
	return c.memory.Trim()
}

// Close ends the stream and gives the context back.
func (c *Card) Close() error {
	err := c.Do(func() error { return c.StreamDestroy(c.Stream) })
	if err = errors.Join(err, c.PrimaryCtxRelease(c.device)); err != nil {
		return fmt.Errorf("cuda: close card %d: %w", c.Ordinal, err)
	}
	return nil
}
