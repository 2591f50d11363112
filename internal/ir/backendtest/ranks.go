package backendtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// mirror is a group of two ranks that hold the same: a sum is twice what this rank has.
type mirror struct {
	calls []ir.Collective
	sizes []int
	fail  error
}

func (m *mirror) Collective(_ context.Context, op ir.Collective, buf []float32) error {
	m.calls = append(m.calls, op)
	m.sizes = append(m.sizes, len(buf))
	for i := range buf {
		buf[i] *= 2
	}
	return m.fail
}

// ranks: a program's collectives go through the Comm, in order, on the right memory. For devices whose memory the host can
// address; others have transports of their own.
func (s *suite) ranks(t *testing.T) {
	b := newDraft(t)
	w := b.filled(ir.Params, normal, ir.F32, 21)
	g := b.slot(ir.Grads, ir.F32, 7, 3)
	x := b.in(normal, 7, 3)
	mean := b.Scale(b.Add(ir.AllReduceSum{}, nil, b.Reduce(ir.Sum, x, 0)), 1.0/14)
	b.Store(g, b.Minus(x, mean))
	b.parts = append(b.parts, ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce, ActiveOnly: true}, On: g})
	b.next()
	update := b.Reshape(b.Read(g), 21)
	norm := b.Add(ir.AllReduceSum{All: true}, nil, b.Sum(b.Map(ir.Square, update)))
	b.Store(w, b.Minus(b.Read(w), b.Over(update, norm)))
	m := s.start(t, b)
	if m.mem[ir.Params].Host() == nil {
		t.Skip("the host cannot address this device's memory")
	}

	before := b.content(m.prog)
	m.restore(t, before)
	comm := &mirror{}
	rt := &ir.Runtime{Comm: comm}
	m.run(t, rt)
	after := m.snapshot(t)
	active := ir.Collective{Kind: ir.AllReduce, ActiveOnly: true}
	if want := []ir.Collective{active, active, {Kind: ir.AllReduce}}; !slices.Equal(comm.calls, want) {
		t.Errorf("collectives are %v, want %v", comm.calls, want)
	}
	if want := []int{3, 21, 1}; !slices.Equal(comm.sizes, want) {
		t.Errorf("collectives of %v elements, want %v", comm.sizes, want)
	}
	envs := []*ref.Env{b.env(rt, before), b.env(rt, before)}
	if err := ref.EvalRanks(envs, [][]ir.Part{b.parts, b.parts}); err != nil {
		t.Fatal(err)
	}
	for _, slot := range []*ir.Slot{w, g} {
		var got []float64
		for _, word := range after[slot.Region][slot.Offset:slot.End()] {
			got = append(got, number(ir.F32, word))
		}
		if err := (limits{scale: 1, floor: 1e-5}).hold(got, envs[0].At(slot), nil); err != nil {
			t.Errorf("%s: %v\n%s", slot.Name, err, m.prog)
		}
	}

	comm.fail = errors.New("a rank is missing")
	if err := m.exe.Run(context.Background(), rt); !errors.Is(err, comm.fail) {
		t.Errorf("got error %v, want one that wraps %v", err, comm.fail)
	}
}
