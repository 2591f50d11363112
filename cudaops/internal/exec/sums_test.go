package exec

import (
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// A loop adds up the parts of a gradient by itself, if it is the first that reads it, and takes it as it lies.
func TestSumsGoToTheUpdate(t *testing.T) {
	type use func(s *sketch, m masked)
	update := func(s *sketch, m masked) {
		w := s.slot(ir.Params, ir.F32, m.grads.Shape[0])
		s.Store(w, s.Minus(s.Read(w), s.Read(m.grads)))
	}
	for _, c := range []struct {
		name string
		uses []use
		want int // tasks that add up
	}{
		{"nobody", nil, 1},
		{"an update", []use{update}, 0},
		{"two updates", []use{update, update}, 0},
		{"a norm before it", []use{func(s *sketch, m masked) { s.out(s.Sum(s.Map(ir.Square, s.Read(m.grads)))) }, update}, 1},
		{"one turned", []use{func(s *sketch, m masked) {
			w := s.slot(ir.Params, ir.F32, maskedIn, maskedOut)
			s.Store(w, s.Minus(s.Read(w), s.T(s.Read(m.dw))))
		}}, 1},
		{"one with a neighbour", []use{func(s *sketch, m masked) {
			next := *m.grads
			next.Shape = ir.Of(m.grads.Shape[0] - 1)
			g := s.Read(&next)
			next.Offset++
			s.out(s.Minus(g, s.Read(&next)))
		}}, 1},
		{"one of a part", []use{func(s *sketch, m masked) {
			part := *m.grads
			part.Shape = ir.Of(100)
			s.out(s.Map(ir.Tanh, s.Read(&part)))
		}}, 1},
		{"one of two gradients at once", []use{func(s *sketch, m masked) {
			other := drawMasked(s, nil)
			s.next()
			w := s.slot(ir.Params, ir.F32, m.grads.Shape[0])
			s.Store(w, s.Minus(s.Read(w), s.Plus(s.Read(m.grads), s.Read(other.grads))))
		}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSketch(t)
			m := drawMasked(s, nil)
			for _, use := range c.uses {
				s.next()
				use(s, m)
			}
			p, err := newPlan(s.compile(), turning{copying{}, along{copied: 0, parts: 2, pieces: 1}}, false)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.sums(); got != c.want {
				t.Errorf("%d tasks add up, want %d:\n%v", got, c.want, p)
			}
		})
	}
}
