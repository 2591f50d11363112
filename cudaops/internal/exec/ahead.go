package exec

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
	"github.com/tandem-train/tandem/internal/ir"
)

// ahead prepares the trials of a program's products, which come one after the other: all that they will run is compiled, on all cores, with what the
// program has besides, and meanwhile the libraries find out which of their algorithms are fastest. Where no trial is due it does nothing.
func (v vendor) ahead(p *ir.Program, linked bool) error {
	sources, err := foreseen(p, linked, func(b *planner, s *ir.Step) ([]way, error) {
		ways, _, err := v.open(b, s)
		return ways, err
	})
	if err != nil || len(sources) == 0 {
		return err
	}
	// The longest take longest, about: they come first.
	slices.SortStableFunc(sources, func(a, b string) int { return len(b) - len(a) })
	var compiling errgroup.Group
	compiling.Go(func() error {
		_, err := nvrtc.CompileAll(sources, arch(v.card))
		return err
	})
	err = v.tune(p, linked)
	return errors.Join(err, compiling.Wait())
}

// tune plans a program with the first way of every product, for what the libraries measure and remember in doing so.
func (v vendor) tune(p *ir.Program, linked bool) error {
	e := v.e.twin()
	_, err := newPlan(p, first{vendor{e, v.toolbox}}, linked)
	v.e.tried = v.e.tried || e.tried
	return errors.Join(err, e.release())
}

// first is the libraries of a plan with the first ways.
type first struct{ vendor }

func (f first) choose(b *planner, s *ir.Step) (way, error) {
	ways, _, err := f.open(b, s)
	return ways[0], err
}

// foreseen lists the sources of what would be tried, in the order of the trials, and before them that of all steps that are no products; none where
// nothing would be tried. open lists the ways of a product between which a trial is to decide.
func foreseen(p *ir.Program, linked bool, open func(*planner, *ir.Step) ([]way, error)) (sources []string, err error) {
	all, err := newPlan(p, assumed{func(b *planner, s *ir.Step) (way, error) {
		ways, err := open(b, s)
		if err != nil || len(ways) == 1 {
			return ways[0], err
		}
		alone, _ := alone(p, s)
		for _, w := range ways {
			one, err := newPlan(alone, assumed{func(*planner, *ir.Step) (way, error) { return w, nil }}, false)
			if errors.Is(err, errNoWay) {
				continue
			}
			if err != nil {
				return w, fmt.Errorf("foresee %s: %w", w.name, err)
			}
			sources = append(sources, one.sources()...)
		}
		return ways[0], nil
	}}, linked)
	if err != nil || len(sources) == 0 {
		return nil, err
	}
	if rest := all.units[0]; len(rest.kernels) > 0 {
		sources = append([]string{all.source(rest)}, sources...)
	}
	return sources, nil
}

// assumed are the libraries of a plan that is made for its kernels: they are there, and take all that they are given.
type assumed struct {
	chosen func(b *planner, s *ir.Step) (way, error)
}

func (a assumed) choose(b *planner, s *ir.Step) (way, error)    { return a.chosen(b, s) }
func (assumed) product(*planner, matrices) (bool, error)        { return true, nil }
func (assumed) convolution(*planner, convolution) (bool, error) { return true, nil }
