package exec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-train/tandem/cudaops/internal/cublas"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// choose gives the fastest way for a product: the one remembered, or else the one that wins a trial on the card. Where nothing can be
// remembered, or the card has no room for a trial, it is the first.
func (v vendor) choose(b *planner, s *ir.Step) (way, error) {
	ways, key, err := v.open(b, s)
	if err != nil || len(ways) == 1 {
		return ways[0], err
	}
	if v.e.sizing != nil {
		return v.e.sizing.largest(ways), nil
	}
	fastest, ok, err := v.fastest(b.program, s, ways)
	if err != nil || !ok {
		return ways[0], err
	}
	kept, ok := v.ways().Put(key, []byte(ways[fastest].name), func(kept []byte) bool { return find(ways, kept) >= 0 })
	if !ok {
		return ways[0], nil
	}
	return ways[find(ways, kept)], nil
}

// open lists the ways between which a trial is to decide, and the key under which the winner is remembered. It is one way where there is nothing to
// decide, since it is remembered, or could not be.
func (v vendor) open(b *planner, s *ir.Step) (ways []way, key string, err error) {
	ways = b.ways(s, v.card.Major)
	if len(ways) == 1 {
		return ways, "", nil
	}
	if key, err = v.keyOf(b, s, ways); err != nil {
		return ways, "", err
	}
	store := v.ways()
	if kept, ok := store.Get(key); ok {
		if i := find(ways, kept); i >= 0 {
			return ways[i : i+1], key, nil
		}
	}
	if !store.Ready() {
		return ways[:1], key, nil
	}
	return ways, key, nil
}

// find is the number of the way of that name, -1 if there is none.
func find(ways []way, name []byte) int {
	return slices.IndexFunc(ways, func(w way) bool { return w.name == string(name) })
}

// ways is what is remembered of products.
func (t *toolbox) ways() *choices.Store {
	if t.remembers == nil {
		t.remembers = choices.Open("products")
	}
	return t.remembers
}

// keyOf says everything of which the fastest way may depend.
func (v vendor) keyOf(b *planner, s *ir.Step, ways []way) (string, error) {
	device, err := v.card.DeviceGet(v.card.Ordinal)
	if err != nil {
		return "", err
	}
	card, err := v.card.DeviceName(device)
	if err != nil {
		return "", err
	}
	version := 0
	if lib, err := cublas.Open(); err == nil {
		version = lib.Version()
	}
	var key strings.Builder
	if room := b.room(); room > 0 {
		fmt.Fprintf(&key, "room for %d bytes, ", room)
	}
	fmt.Fprintf(&key, "cublasLt %d, kernels %d, %s, %+v, %s%+v, %+v", version, kernelVersion, card, b.program.Target, opName(s.Op), s.Op, s.Epilogue)
	for _, o := range append(slices.Clone(s.In), s.Out...) {
		fmt.Fprintf(&key, ", %s%v%v at %d", o.DType, o.Shape, o.Strides, at(o).bytes%boundary)
	}
	for _, w := range ways {
		key.WriteString(", " + w.name)
	}
	if heavy(s) {
		key.WriteString(", sustained")
	}
	return key.String(), nil
}

// fastest tries the ways where the step is to work, one after the other; only results that would overwrite what must stay go elsewhere. ok is
// false where the card has no memory for what is needed besides.
func (v vendor) fastest(p *ir.Program, s *ir.Step, ways []way) (fastest int, ok bool, err error) {
	var given []cuda.Ptr
	defer func() {
		for _, m := range given {
			err = errors.Join(err, v.card.MemFree(m))
		}
	}()
	take := func(bytes int) (m cuda.Ptr, ok bool) {
		if bytes == 0 {
			return 0, true
		}
		m, err := v.card.MemAlloc(int64(bytes))
		if err == nil {
			given = append(given, m)
		}
		return m, err == nil
	}
	alone, bytes := alone(p, s)
	results, ok := take(bytes)
	if !ok {
		return 0, false, nil
	}
	v.e.tried = true
	// What has been started before may still use this memory.
	if err := v.card.StreamSynchronize(v.e.shared); err != nil {
		return 0, false, err
	}
	if heavy(s) {
		if err := v.e.noiseFor(s); err != nil {
			return 0, false, err
		}
	}
	trials, most := make([]*Exec, len(ways)), 0
	defer func() {
		for _, e := range trials {
			if e != nil {
				err = errors.Join(err, e.release())
			}
		}
	}()
	for i, w := range ways {
		e, err := v.trial(alone, w, results)
		if err != nil {
			return 0, false, fmt.Errorf("try %s: %w", w.name, err)
		}
		if e == nil {
			continue
		}
		trials[i] = e
		if i > 0 && !e.plan.fits(e.plan.scratch) {
			trials[i], err = nil, e.release()
			if err != nil {
				return 0, false, err
			}
			continue
		}
		most = max(most, e.plan.scratch)
	}
	shared, ok := take(most)
	if !ok {
		return 0, false, nil
	}
	var compiling errgroup.Group
	for i, e := range trials {
		if e == nil {
			continue
		}
		compiling.Go(func() error {
			if err := e.compile(); err != nil {
				return fmt.Errorf("try %s: %w", ways[i].name, err)
			}
			return nil
		})
	}
	if err := compiling.Wait(); err != nil {
		return 0, false, err
	}
	for i, e := range trials {
		if e == nil {
			continue
		}
		e.base[scratch] = shared
		if err := e.bindAll(); err != nil {
			return 0, false, fmt.Errorf("try %s: %w", ways[i].name, err)
		}
	}
	fastest, err = choices.Fastest(len(ways), heavy(s), func(i int, pace choices.Pace) (float64, error) {
		e := trials[i]
		if e == nil {
			return 0, errNoWay
		}
		return choices.Measure(v.card.API, pace, func(s cuda.Stream) error {
			e.stream = s
			for _, w := range e.parts[0].work {
				if err := w.put(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return fastest, err == nil, err
}

// heavy reports whether a step is a product that is heavy work.
func heavy(s *ir.Step) bool {
	p, err := newMatrices(s)
	return err == nil && choices.Heavy(p.batch*p.m*p.n*p.k)
}

// noiseFor makes noise of what a step reads of work memory.
func (e *Exec) noiseFor(s *ir.Step) error {
	for _, o := range s.In {
		if o.Region != ir.Work {
			continue
		}
		if err := e.noise(e.address(at(o)), reach(o.Shape, o.Strides)*o.DType.Size()); err != nil {
			return err
		}
	}
	return nil
}

// alone is a program of one step, whose results lie in so many bytes of spare memory where they must not be written in their own place, as far from a boundary as
// there.
func alone(p *ir.Program, s *ir.Step) (q *ir.Program, bytes int) {
	one := *s
	one.Out = slices.Clone(s.Out)
	for i := range one.Out {
		o := &one.Out[i]
		if o.Region == ir.Work {
			continue
		}
		from := bytes + at(*o).bytes%boundary
		o.Region, o.Offset = spare, from/o.DType.Size()
		bytes = blocks(extent(*o).to, boundary) * boundary
	}
	return &ir.Program{Name: "trial", Target: p.Target, Size: [ir.NumRegions]int{ir.Work: p.Size[ir.Work]}, Steps: []ir.Step{one}}, bytes
}

// twin is an Exec for a plan beside the Exec's own, on its memory.
func (e *Exec) twin() *Exec {
	return &Exec{card: e.card, shared: e.shared, stream: e.card.Stream, tools: e.tools, base: e.base}
}

// trial plans a program of one step in a way, on the Exec's own memory and some for results. It is nil where that is none.
func (v vendor) trial(p *ir.Program, w way, results cuda.Ptr) (e *Exec, err error) {
	e = v.e.twin()
	e.base[spare] = results
	e.plan, err = newPlan(p, only{vendor{e, v.toolbox}, w}, false)
	if err == nil {
		return e, nil
	}
	if errors.Is(err, errNoWay) {
		err = nil
	}
	return nil, errors.Join(err, e.release())
}

// only is the libraries of a trial.
type only struct {
	vendor
	way way
}

func (o only) choose(*planner, *ir.Step) (way, error) { return o.way, nil }
