package exec

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/backendtest"
)

// openCard opens the first card, or skips the test.
func openCard(t *testing.T) *cuda.Card {
	t.Helper()
	api, err := cuda.Load()
	if err != nil {
		t.Skipf("no card: %v", err)
	}
	card, err := api.OpenCard(0)
	if err != nil {
		t.Fatal(err)
	}
	return card
}

// TestConformance runs the suite of backends on a card.
func TestConformance(t *testing.T) {
	card := openCard(t)
	backendtest.Run(t, func(*testing.T) ir.Device { return &device{card} })
}

// device is a card as an ir.Device, with the driver's memory.
type device struct{ *cuda.Card }

func (d *device) ID() int        { return d.Ordinal }
func (d *device) String() string { return fmt.Sprintf("cuda:%d", d.Ordinal) }

func (d *device) Alloc(n int64) (ir.DeviceMemory, error) {
	if n < 1 {
		return nil, fmt.Errorf("alloc: %d bytes", n)
	}
	m := &memory{card: d.Card, n: n}
	return m, d.Do(func() (err error) {
		m.at, err = d.MemAlloc(n)
		return err
	})
}

func (d *device) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	var at [ir.NumRegions]cuda.Ptr
	for r, m := range mem {
		if m == nil {
			continue
		}
		if m.Len() < p.Bytes(ir.Region(r)) {
			return nil, fmt.Errorf("region %s has %d bytes", ir.Region(r), m.Len())
		}
		at[r] = m.(*memory).at
	}
	e, err := Load(d.Card, p, at)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// memory is a block of a card's memory.
type memory struct {
	card *cuda.Card
	at   cuda.Ptr
	n    int64
}

func (m *memory) Len() int64   { return m.n }
func (m *memory) Host() []byte { return nil }
func (m *memory) Free() error  { return m.card.Do(func() error { return m.card.MemFree(m.at) }) }

func (m *memory) Write(off int64, src []byte) error {
	return m.staged(off, len(src), func(p cuda.Pinned, n int) error {
		copy(p.Bytes(), src)
		return m.card.MemcpyHtoD(m.at+cuda.Ptr(off), p, 0, n, m.card.Stream)
	}, nil)
}

func (m *memory) Read(off int64, dst []byte) error {
	return m.staged(off, len(dst), func(p cuda.Pinned, n int) error {
		return m.card.MemcpyDtoH(p, 0, m.at+cuda.Ptr(off), n, m.card.Stream)
	}, func(p cuda.Pinned) { copy(dst, p.Bytes()) })
}

// staged transfers n bytes by way of pinned memory.
func (m *memory) staged(off int64, n int, transfer func(cuda.Pinned, int) error, after func(cuda.Pinned)) error {
	if off < 0 || off > m.n || int64(n) > m.n-off {
		return fmt.Errorf("%d bytes at %d of %d", n, off, m.n)
	}
	if n == 0 {
		return nil
	}
	return m.card.Do(func() error {
		p, err := m.card.MemHostAlloc(n)
		if err != nil {
			return err
		}
		err = errors.Join(transfer(p, n), m.card.StreamSynchronize(m.card.Stream))
		if err == nil && after != nil {
			after(p)
		}
		return errors.Join(err, m.card.MemFreeHost(p))
	})
}
