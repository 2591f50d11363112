package backendtest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// memories: blocks of device memory, and programs that share them.
func (s *suite) memories(t *testing.T) {
	t.Run("block", func(t *testing.T) {
		m, err := s.dev.Alloc(1000)
		if err != nil {
			t.Fatal(err)
		}
		if m.Len() != 1000 {
			t.Errorf("length is %d, want 1000", m.Len())
		}
		src := make([]byte, 1000)
		for i := range src {
			src[i] = byte(i * 7)
		}
		if err := m.Write(0, src); err != nil {
			t.Fatal(err)
		}
		if err := m.Write(993, []byte{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
		copy(src[993:], []byte{1, 2, 3})
		got := make([]byte, 990)
		if err := m.Read(7, got[:985]); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[:985], src[7:992]) {
			t.Error("read differs from what was written")
		}
		if h := m.Host(); h != nil && !bytes.Equal(h, src) {
			t.Error("Host differs from what was written")
		}
		for _, c := range []struct {
			off int64
			n   int
		}{{-1, 4}, {997, 4}, {1001, 0}, {1 << 62, 4}} {
			if err := m.Write(c.off, make([]byte, c.n)); err == nil {
				t.Errorf("write of %d bytes at %d is no error", c.n, c.off)
			}
			if err := m.Read(c.off, make([]byte, c.n)); err == nil {
				t.Errorf("read of %d bytes at %d is no error", c.n, c.off)
			}
		}
		if err := m.Clear(); err != nil {
			t.Errorf("clear: %v", err)
		}
		if err := m.Read(0, src); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(src, make([]byte, 1000)) {
			t.Error("bytes are not 0 that have been cleared")
		}
		if err := m.Free(); err != nil {
			t.Errorf("free: %v", err)
		}
	})

	t.Run("impossible sizes", func(t *testing.T) {
		if m, err := s.dev.Alloc(-1); err == nil {
			t.Errorf("-1 bytes are %d bytes", m.Len())
		}
	})

	t.Run("region too small", func(t *testing.T) {
		b := newDraft(t)
		b.out(b.Map(ir.Exp, b.in(normal, 100)))
		p, err := ir.Compile("conformance", b.size, s.targetOf(b), b.parts...)
		if err != nil {
			t.Fatal(err)
		}
		var mem [ir.NumRegions]ir.DeviceMemory
		for r := range mem {
			if n := p.Bytes(ir.Region(r)); n > 0 {
				if ir.Region(r) == ir.Output {
					n -= 4
				}
				if mem[r], err = s.dev.Alloc(n); err != nil {
					t.Fatal(err)
				}
				atEnd(t, mem[r].Free)
			}
		}
		if e, err := s.dev.Load(p, mem); err == nil {
			atEnd(t, e.Close)
			t.Error("a program was loaded on less memory than it needs")
		}
		mem[ir.Output] = nil
		if e, err := s.dev.Load(p, mem); err == nil {
			atEnd(t, e.Close)
			t.Error("a program was loaded without one of its regions")
		}
	})

	t.Run("two programs on one arena", func(t *testing.T) {
		// Training and evaluation: the second sees what the first stored.
		b := newDraft(t)
		w := b.filled(ir.Params, steps, ir.F32, 500)
		b.Store(w, b.Scale(b.Read(w), 2))
		train := s.start(t, b)
		before := b.content(train.prog)
		train.restore(t, before)

		var g ir.Graph
		out := &ir.Slot{Region: ir.Output, Name: "sum", Shape: ir.Of(500)}
		g.Store(out, g.Plus(g.Read(w), g.Const(1)))
		p, err := ir.Compile("evaluate", [ir.NumRegions]int{ir.Params: b.size[ir.Params]}, train.prog.Target, ir.Part{Graph: &g})
		if err != nil {
			t.Fatal(err)
		}
		eval := &machine{dev: s.dev, prog: p}
		eval.mem[ir.Params] = train.mem[ir.Params]
		if eval.mem[ir.Output], err = s.dev.Alloc(p.Bytes(ir.Output)); err != nil {
			t.Fatal(err)
		}
		atEnd(t, eval.mem[ir.Output].Free)
		if n := p.Bytes(ir.Work); n > 0 {
			t.Fatalf("a loop from parameters to an output takes %d bytes of work", n)
		}
		if n := p.Bytes(ir.Consts); n > 0 {
			t.Fatalf("a number in a loop takes %d bytes of constants", n)
		}
		if eval.exe, err = s.dev.Load(p, eval.mem); err != nil {
			t.Fatal(err)
		}
		atEnd(t, eval.exe.Close)
		for round := 1; round <= 3; round++ {
			train.run(t, &ir.Runtime{})
			eval.run(t, &ir.Runtime{})
			var want []uint32
			for i := range 500 {
				x := number(ir.F32, before[ir.Params][w.Offset+i])
				want = append(want, word(ir.F32, x*float64(int(1)<<round)+1))
			}
			if !slices.Equal(eval.read(t, ir.Output), want) {
				t.Fatalf("round %d: the evaluation does not see the trained parameters", round)
			}
		}
	})
}
