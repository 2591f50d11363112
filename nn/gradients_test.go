package nn

import (
	"testing"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// halfUsed uses one of two layers.
type halfUsed struct{ Used, Unused *LinearLayer }

func (m *halfUsed) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	return m.Used.Forward(g, x)
}

// TestGradientsApart: of gradients that lie as halves each rank stores its own, all of them, at its place and nowhere else, and the update reads both ranks'.
func TestGradientsApart(t *testing.T) {
	m := &halfUsed{Linear(5, 7), Linear(3, 2)}
	if err := Initialize(m, 1); err != nil {
		t.Fatal(err)
	}
	l, err := NewLayout(m)
	if err != nil {
		t.Fatal(err)
	}
	c := &Compiler{Model: m, Loss: CrossEntropy(), Optimizer: SGD(0.1), Layout: l, Copied: true, GradHalf: ir.BF16, Ranks: 2}
	var size [ir.NumRegions]int
	size[ir.Params], size[ir.Grads] = c.ParamElements(), c.GradElements()
	target := BF16.Target(ir.Traits{Halves: true})
	target.RoundedParams = c.CopyAt()
	compile := func(g *ir.Graph) {
		t.Helper()
		if _, err := ir.Compile("part", size, target, ir.Part{Graph: g}); err != nil {
			t.Error(err)
		}
	}
	for rank := range 2 {
		train, err := c.Train(Share{Input: ir.Of(4, 5), Samples: 4, Total: 8, Rank: rank})
		if err != nil {
			t.Fatal(err)
		}
		for name, g := range map[string]*ir.Graph{"train": train.Graph, "zero": c.Zero(rank)} {
			compile(g)
			stored := map[int]bool{}
			for _, st := range g.Stores {
				if s := st.Slot; s.DType == ir.BF16 {
					for i := s.Offset; i < s.End(); i++ {
						stored[i] = true
					}
				} else if s.Offset < c.TailRange().Offset {
					t.Errorf("%s of rank %d stores %s as %s among the gradients", name, rank, s.Name, s.DType)
				}
			}
			elements := 0
			for _, p := range l.Params {
				for i := range p.Slot.Shape.Size() {
					elements++
					if at := rank*l.Elements + p.Slot.Offset + i; !stored[at] {
						t.Fatalf("%s of rank %d does not store element %d of %s at %d", name, rank, i, p.Name, at)
					}
				}
			}
			if name == "zero" {
				elements = l.Elements // the gaps between parameters, too
			}
			if len(stored) != elements {
				t.Errorf("%s of rank %d stores %d gradients, want %d", name, rank, len(stored), elements)
			}
		}
	}
	size[ir.State], size[ir.Hyper] = c.StateElements(l.Elements), len(c.Optimizer.Hyper())
	update, err := c.Update(0, l.Elements, 8, false)
	if err != nil {
		t.Fatal(err)
	}
	compile(update)
	var read []int
	for _, v := range update.Values {
		if r, ok := v.Op.(ir.Read); ok && r.Slot.DType == ir.BF16 {
			read = append(read, r.Slot.Offset, r.Slot.End())
		}
	}
	if len(read) != 4 || read[0] != 0 || read[1] != l.Elements || read[2] != l.Elements || read[3] != 2*l.Elements {
		t.Errorf("the update reads gradients from and to %v, want those of both ranks, of %d elements each", read, l.Elements)
	}
}
