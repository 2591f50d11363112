package exec

import (
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
	"github.com/tandem-train/tandem/internal/ir"
)

// ahead begins to compile, on all cores, what trials of a program's products will run, and what the program has besides: trials come one after the
// other, and compiling takes longer than all the rest of them. The function that it returns waits for the end of that. Where no trial
// is due it does nothing.
func (v vendor) ahead(p *ir.Program, linked bool) (wait func() error, err error) {
	sources, err := foreseen(p, linked, func(b *planner, s *ir.Step) ([]way, error) {
		ways, _, err := v.open(b, s)
		return ways, err
	})
	if err != nil || len(sources) == 0 {
		return func() error { return nil }, err
	}
	done := make(chan error, 1)
	go func() {
		_, err := nvrtc.CompileAll(sources, arch(v.card))
		done <- err
	}()
	return func() error { return <-done }, nil
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
