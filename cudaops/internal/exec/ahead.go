package exec

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-train/tandem/cudaops/internal/cublas"
	"github.com/tandem-train/tandem/cudaops/internal/cudnn"
	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
	"github.com/tandem-train/tandem/internal/ir"
)

// ahead begins to compile, on all cores, what a program has besides its products, and all that trials of those will run. Trials come one after the other:
// so it waits until all is compiled for them, and meanwhile the libraries find out which of their algorithms are fastest. The function that it
// returns waits for the end.
func (v vendor) ahead(p *ir.Program, linked bool) (wait func() error, err error) {
	rest, trials, err := foreseen(p, linked, func(b *planner, s *ir.Step) ([]way, error) {
		ways, _, err := v.open(b, s)
		return ways, err
	})
	if err != nil {
		return nil, err
	}
	sources := slices.Concat(rest, trials)
	// The longest take longest, about: they come first.
	slices.SortStableFunc(sources, func(a, b string) int { return len(b) - len(a) })
	var compiling errgroup.Group
	compiling.Go(func() error {
		_, err := nvrtc.CompileAll(sources, arch(v.card))
		return err
	})
	if len(trials) > 0 {
		if err := errors.Join(v.tune(p, linked), compiling.Wait()); err != nil {
			return nil, err
		}
	}
	return compiling.Wait, nil
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

// foreseen lists the source of all steps that are no products with several ways, if there are such, and in the order of the trials the sources of all
// that would be tried. open lists the ways of a product between which a trial is to decide.
func foreseen(p *ir.Program, linked bool, open func(*planner, *ir.Step) ([]way, error)) (rest, trials []string, err error) {
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
			trials = append(trials, one.sources()...)
		}
		return ways[0], nil
	}}, linked)
	if err != nil {
		return nil, nil, err
	}
	if u := all.units; len(u) > 0 && len(u[0].kernels) > 0 {
		rest = []string{all.source(u[0])}
	}
	return rest, trials, nil
}

// assumed are the libraries of a plan that is made for its kernels: those that are there take all that they are given.
type assumed struct {
	chosen func(b *planner, s *ir.Step) (way, error)
}

func (a assumed) choose(b *planner, s *ir.Step) (way, error) { return a.chosen(b, s) }

func (assumed) product(*planner, matrices) (bool, error) {
	_, err := cublas.Open()
	return err == nil, nil
}

func (assumed) convolution(*planner, convolution) (bool, error) {
	_, err := cudnn.Open()
	return err == nil, nil
}
