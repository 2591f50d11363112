package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/backendtest"
)

// openCard opens the first card, or skips the test.
func openCard(t testing.TB) *cuda.Card {
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

// TestConformance runs the suite of backends on a card, with cuBLASLt and cuDNN, as far as they are there, and without.
func TestConformance(t *testing.T) {
	for name, libs := range map[string]func(*Exec) libraries{
		"libraries":   func(e *Exec) libraries { return vendor{e, e.tools} },
		"own kernels": func(*Exec) libraries { return none{} },
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) ir.Device { return &device{openCard(t), libs} })
		})
	}
}

// device is a card as an ir.Device, with the driver's memory.
type device struct {
	*cuda.Card
	libs func(*Exec) libraries
}

func (d *device) ID() int        { return d.Ordinal }
func (d *device) String() string { return fmt.Sprintf("cuda:%d", d.Ordinal) }

func (d *device) Traits() ir.Traits { return Traits }

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
	e, err := load(d.Card, p, at, nil, d.libs)
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

func (m *memory) Clear() error {
	return m.card.Do(func() error { return m.card.MemsetD8(m.at, 0, int(m.n), m.card.Stream) })
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

// loaded is a program on a card, with memory for all its regions.
type loaded struct {
	*Exec
	dev *device
	mem [ir.NumRegions]ir.DeviceMemory
}

func loadOn(t testing.TB, p *ir.Program) *loaded {
	t.Helper()
	return loadWith(t, p, func(e *Exec) libraries { return vendor{e, e.tools} })
}

// loadWith is loadOn with libraries, nil where those have no way for one of the products.
func loadWith(t testing.TB, p *ir.Program, libs func(*Exec) libraries) *loaded {
	t.Helper()
	l := &loaded{dev: &device{openCard(t), libs}}
	t.Cleanup(func() {
		if err := l.dev.Close(); err != nil {
			t.Error(err)
		}
	})
	for r := range ir.NumRegions {
		n := p.Bytes(r)
		if n == 0 {
			continue
		}
		m, err := l.dev.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Free(); err != nil {
				t.Error(err)
			}
		})
		l.mem[r] = m
		if err := l.dev.Do(func() error {
			return errors.Join(l.dev.MemsetD8(m.(*memory).at, 0, int(n), l.dev.Stream), l.dev.StreamSynchronize(l.dev.Stream))
		}); err != nil {
			t.Fatal(err)
		}
	}
	e, err := l.dev.Load(p, l.mem)
	if errors.Is(err, errNoWay) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Exec = e.(*Exec)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *loaded) write(t testing.TB, s *ir.Slot, x any) {
	t.Helper()
	var b []byte
	switch x := x.(type) {
	case []float32:
		b = ir.Bytes(x)
	case []int32:
		b = ir.Bytes(x)
	}
	if err := l.mem[s.Region].Write(int64(4*s.Offset), b); err != nil {
		t.Fatal(err)
	}
}

func (l *loaded) read(t testing.TB, s *ir.Slot) []float32 {
	t.Helper()
	x := make([]float32, s.Shape.Size())
	if err := l.mem[s.Region].Read(int64(4*s.Offset), ir.Bytes(x)); err != nil {
		t.Fatal(err)
	}
	return x
}

// doubling is a group of two ranks that hold the same.
type doubling struct {
	calls []ir.Collective
	fail  error
}

func (d *doubling) Collective(_ context.Context, op ir.Collective, buf []float32) error {
	d.calls = append(d.calls, op)
	for i := range buf {
		buf[i] *= 2
	}
	return d.fail
}

// Collectives go through the run's Comm, in order, on the right memory, in every way to run.
func TestCollectives(t *testing.T) {
	for _, graph := range []string{"on", "off"} {
		t.Run("graph "+graph, func(t *testing.T) {
			t.Setenv(GraphVariable, graph)
			s := newSketch(t)
			in, g, w := s.slot(ir.Input, ir.F32, 3), s.slot(ir.Grads, ir.F32, 3), s.slot(ir.Params, ir.F32, 3)
			s.Store(g, s.Plus(s.Read(in), s.Add(ir.AllReduceSum{}, nil, s.Read(in))))
			s.parts = append(s.parts, ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce}, On: g})
			s.next()
			s.Store(w, s.Plus(s.Read(w), s.Read(g)))
			l := loadOn(t, s.compile())
			l.write(t, in, []float32{1, 2, 3})
			comm := &doubling{}
			for round := range 4 {
				comm.calls = nil
				if err := l.Run(context.Background(), &ir.Runtime{Comm: comm}); err != nil {
					t.Fatal(err)
				}
				if want := []ir.Collective{{Kind: ir.AllReduce, ActiveOnly: true}, {Kind: ir.AllReduce}}; !slices.Equal(comm.calls, want) {
					t.Errorf("round %d: calls %v, want %v", round, comm.calls, want)
				}
				n := float32(6 * (round + 1))
				if got := l.read(t, w); !slices.Equal(got, []float32{n, 2 * n, 3 * n}) {
					t.Errorf("round %d: got %v", round, got)
				}
			}
			comm.fail = errors.New("a rank is missing")
			if err := l.Run(context.Background(), &ir.Runtime{Comm: comm}); !errors.Is(err, comm.fail) || !strings.Contains(err.Error(), "(Collective)") {
				t.Errorf("got %v", err)
			}
			// The context counts up to the collective among all ranks.
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := l.Run(ctx, &ir.Runtime{Comm: comm}); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// An index that no check has seen reaches nothing outside of memory, and is an error.
func TestGuards(t *testing.T) {
	s := newSketch(t)
	table, index := s.slot(ir.Input, ir.F32, 3, 4), s.slot(ir.Input, ir.I32, 5)
	out := s.slot(ir.Output, ir.F32, 5, 4)
	s.Store(out, s.Add(ir.Gather{}, nil, s.Read(table), s.Read(index)))
	s.out(s.Add(ir.ScatterAdd{Rows: 3}, nil, s.Read(index), s.in(5, 4)))
	l := loadOn(t, s.compile())
	for _, c := range []struct {
		indices []int32
		want    *ir.IndexError
	}{
		{[]int32{0, 2, 1, 0, 2}, nil},
		{[]int32{0, 3, 1, -7, 2}, &ir.IndexError{What: "row", Index: 1, Value: 3, Bound: 3}},
		{[]int32{0, 2, 1, 0, 1 << 30}, &ir.IndexError{What: "row", Index: 4, Value: 1 << 30, Bound: 3}},
		{[]int32{2, 2, 1, 0, 2}, nil},
	} {
		l.write(t, index, c.indices)
		err := l.Run(context.Background(), &ir.Runtime{})
		var got *ir.IndexError
		if errors.As(err, &got); (got == nil) != (c.want == nil) || got != nil && *got != *c.want || got == nil && err != nil {
			t.Errorf("%v: got %v, want %v", c.indices, err, c.want)
		}
	}
}

func TestLifeOfAnExec(t *testing.T) {
	s := newSketch(t)
	x := s.slot(ir.Input, ir.F32, 300, 40)
	s.out(s.MatMul(s.Read(x), s.T(s.Read(x))))
	p := s.compile()
	l := loadOn(t, p)
	if l.Extra() < 1 {
		t.Errorf("%d bytes of its own", l.Extra())
	}
	if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := l.Run(context.Background(), &ir.Runtime{}); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	var at [ir.NumRegions]cuda.Ptr
	for r, m := range l.mem {
		if m != nil {
			at[r] = m.(*memory).at
		}
	}
	at[ir.Input] += 4
	if _, err := Load(l.dev.Card, p, at, nil); err == nil {
		t.Error("loaded on memory that is not on a boundary")
	}
	at[ir.Input] = 0
	if _, err := Load(l.dev.Card, p, at, nil); err == nil {
		t.Error("loaded without a region")
	}
	if len(toolboxes.of) != 0 {
		t.Errorf("%d toolboxes are left", len(toolboxes.of))
	}
}
