package backendtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// faults: what fails must fail in the stated way, and leave parameters and state alone.
func (s *suite) faults(t *testing.T) {
	for _, c := range []struct {
		name  string
		index func(b *draft, n int) *ir.Value // n indices, 0..8, that do not come straight from an input
		bound int
	}{
		{"computed index", func(b *draft, n int) *ir.Value {
			return b.Squeeze(b.Add(ir.ArgMax{Axis: 1}, nil, b.inExact(normal, n, 9)), 1)
		}, 3},
		{"sliced index", func(b *draft, n int) *ir.Value {
			return b.SliceAxis(b.Reshape(b.ints(9, 2*n), 2, n), 0, 1, 2)
		}, 3},
		{"gathered index", func(b *draft, n int) *ir.Value {
			return b.Add(ir.Gather{}, nil, b.ints(9, 50), b.ints(50, n))
		}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newDraft(t)
			w := b.filled(ir.Params, normal, ir.F32, 40)
			m := b.filled(ir.State, normal, ir.F32, 40)
			b.Store(m, b.Scale(b.Read(m), 0.5))
			index := c.index(b, 30)
			checked := b.Add(ir.CheckIndex{Bound: c.bound, What: "token"}, nil, index)
			b.Store(w, b.Times(b.Read(w), b.Sum(b.Map(ir.Float, checked))))
			m1 := s.start(t, b)
			before := b.content(m1.prog)
			m1.restore(t, before)

			want := b.firstError(before)
			var got *ir.IndexError
			if err := m1.exe.Run(context.Background(), &ir.Runtime{}); !errors.As(err, &got) {
				t.Fatalf("got error %v, want %v\n%s", err, want, m1.prog)
			}
			if *got != *want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			after := m1.snapshot(t)
			for _, r := range []ir.Region{ir.Params, ir.State} {
				for i := range after[r] {
					if after[r][i] != before[r][i] {
						t.Fatalf("%s+%d changed in a run that failed\n%s", r, i, m1.prog)
					}
				}
			}
		})
	}

	t.Run("index computed from what is stored", func(t *testing.T) {
		b := newDraft(t)
		w := b.filled(ir.Params, normal, ir.F32, 9, 5)
		updated := b.Scale(b.Read(w), 2)
		b.Store(w, updated)
		token := b.Add(ir.CheckIndex{Bound: 0, What: "token"}, nil, b.Add(ir.ArgMax{Axis: 1}, nil, updated))
		b.out(token)
		m := s.start(t, b)
		before := b.content(m.prog)
		m.restore(t, before)
		var got *ir.IndexError
		if err := m.exe.Run(context.Background(), &ir.Runtime{}); !errors.As(err, &got) {
			t.Fatalf("got error %v", err)
		}
		if !slices.Equal(m.read(t, ir.Params), before[ir.Params]) {
			t.Errorf("parameters changed in a run that failed\n%s", m.prog)
		}
	})

	t.Run("index in range", func(t *testing.T) {
		s.conforms(t, func(b *draft) {
			index := b.Squeeze(b.Add(ir.ArgMax{Axis: 1}, nil, b.inExact(normal, 30, 9)), 1)
			b.out(b.Add(ir.CheckIndex{Bound: 9, What: "token"}, nil, index))
			b.out(b.Add(ir.Gather{}, nil, b.in(normal, 9, 4), b.Add(ir.CheckIndex{Bound: 9, What: "row"}, nil, index)))
		})
	})

	t.Run("check of an input is the caller's", func(t *testing.T) {
		b := newDraft(t)
		labels := b.ints(9, 30)
		b.out(b.Add(ir.CheckIndex{Bound: 3, Ignore: 8, What: "label"}, nil, labels))
		p, err := ir.Compile("conformance", b.size, s.targetOf(b), b.parts...)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Checks) != 1 || p.Checks[0].Slot != b.slots[0] {
			t.Fatalf("checks are %+v", p.Checks)
		}
		x := []int32{0, 8, 2, 7}
		want := ir.IndexError{What: "label", Index: 3, Value: 7, Bound: 3}
		var got *ir.IndexError
		if err := p.Checks[0].Verify(x); !errors.As(err, &got) || *got != want {
			t.Errorf("got %v, want %v", err, &want)
		}
	})

	t.Run("context has ended", func(t *testing.T) {
		b := newDraft(t)
		w := b.filled(ir.Params, normal, ir.F32, 40)
		b.Store(w, b.Scale(b.Read(w), 2))
		m := s.start(t, b)
		before := b.content(m.prog)
		m.restore(t, before)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := m.exe.Run(ctx, &ir.Runtime{}); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v", err)
		}
		if !sameImage(m.snapshot(t), before) {
			t.Error("memory changed")
		}
		m.run(t, &ir.Runtime{}) // the executable is whole
	})
}

// firstError is what ref says is wrong with the content.
func (b *draft) firstError(before image) *ir.IndexError {
	var ie *ir.IndexError
	if err := ref.Eval(b.env(&ir.Runtime{}, before), b.parts...); !errors.As(err, &ie) {
		panic("backendtest: the case should fail")
	}
	return ie
}
