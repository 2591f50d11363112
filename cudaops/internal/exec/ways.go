package exec

import (
	"errors"

	"github.com/tandem-train/tandem/internal/ir"
)

// way is how a product, or a convolution, can be carried out, with all of its epilogue. Which is the fastest is measured; see trial.go.
type way struct {
	name  string
	plan  func(b *planner, s *ir.Step) error
	rival bool // there are others
}

// hopper is the first major version of compute capability that has clusters of blocks and launches kernels early.
const hopper = 9

// errNoWay is what plans give of a way that turns out not to be one for the product.
var errNoWay = errors.New("no way for this product")

// ways lists how a product can be carried out, on a card of that major version of compute capability. The first always can be.
func (b *planner) ways(s *ir.Step, major int) (list []way) {
	if _, ok := s.Op.(ir.MatMul); ok {
		list = b.productWays(s, major)
	} else {
		list = b.convWays(s, major)
	}
	for i := range list {
		list[i].rival = len(list) > 1
	}
	return list
}

func (b *planner) productWays(s *ir.Step, major int) []way {
	list := []way{{name: "plain", plan: (*planner).plain}}
	p, err := newMatrices(s)
	if err != nil || s.Out[0].Shape.Size() == 0 || s.Epilogue.Totals {
		return list // and planning it says what is wrong
	}
	if p.summed && p.float32s() && !p.biased && !p.relu && !p.masked {
		list = append(list, whole("sums by the library", (*planner).byLibrary))
	}
	if !b.program.Target.TF32 || !p.float32s() || !p.fits() || major < hopper {
		return list
	}
	for _, t := range tiles(p.batch, p.m, p.n, p.k) {
		list = append(list, whole(t.String(), func(b *planner, p matrices) error {
			b.tensor(p, t)
			return nil
		}))
	}
	return append(list, alongWays(p)...)
}

// whole is a way that does everything of a product at once.
func whole(name string, plan func(b *planner, p matrices) error) way {
	return way{name: name, plan: func(b *planner, s *ir.Step) error {
		p, err := newMatrices(s)
		if err != nil {
			return err
		}
		return plan(b, p)
	}}
}

// plain makes a product by the library, or else by a kernel of our own, and what else there is of its epilogue by steps after it.
func (b *planner) plain(s *ir.Step) error {
	plain := s.Plain()
	p, err := newMatrices(&plain[0])
	if err != nil {
		return err
	}
	if s.Out[0].Shape.Size() > 0 {
		err := b.byLibrary(p)
		if errors.Is(err, errNoWay) {
			err = b.ownMatMul(p)
		}
		if err != nil {
			return err
		}
	}
	if s.Epilogue.Totals {
		return b.storedSum(&plain[1], &plain[2])
	}
	for i := range plain[1:] {
		if err := b.build(&plain[1+i]); err != nil {
			return err
		}
	}
	if s.Epilogue.Mask != 0 && !s.Epilogue.Sums && s.Out[0].Shape.Size() > 0 {
		b.tasks[len(b.tasks)-1].masks = true
	}
	return nil
}

// byLibrary gives a product to the library.
func (b *planner) byLibrary(p matrices) error {
	done, err := b.product(b, p)
	if err == nil && !done {
		err = errNoWay
	}
	return err
}
