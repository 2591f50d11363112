package exec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/cudaops/internal/cublas"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// choose gives the fastest way for a product: the one remembered, or else the one that wins a trial on the card. Where nothing can be
// remembered, or the card has no room for a trial, it is the first.
func (v vendor) choose(b *planner, s *ir.Step) (way, error) {
	ways := b.ways(s, v.card.Major)
	if len(ways) == 1 {
		return ways[0], nil
	}
	key, err := v.keyOf(b.program, s, ways)
	if err != nil {
		return way{}, err
	}
	named := func(name []byte) int {
		return slices.IndexFunc(ways, func(w way) bool { return w.name == string(name) })
	}
	store := v.ways()
	if kept, ok := store.Get(key); ok && named(kept) >= 0 {
		return ways[named(kept)], nil
	}
	if !store.Ready() {
		return ways[0], nil
	}
	fastest, ok, err := v.fastest(b.program, s, ways)
	if err != nil || !ok {
		return ways[0], err
	}
	kept, ok := store.Put(key, []byte(ways[fastest].name), func(kept []byte) bool { return named(kept) >= 0 })
	if !ok {
		return ways[0], nil
	}
	return ways[named(kept)], nil
}

// ways is what is remembered of products.
func (t *toolbox) ways() *choices.Store {
	if t.remembers == nil {
		t.remembers = choices.Open("products")
	}
	return t.remembers
}

// keyOf says everything of which the fastest way may depend.
func (v vendor) keyOf(p *ir.Program, s *ir.Step, ways []way) (string, error) {
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
	fmt.Fprintf(&key, "cublasLt %d, kernels %d, %s, %+v, %s%+v, %+v", version, kernelVersion, card, p.Target, opName(s.Op), s.Op, s.Epilogue)
	for _, o := range append(slices.Clone(s.In), s.Out...) {
		fmt.Fprintf(&key, ", %s%v%v at %d", o.DType, o.Shape, o.Strides, at(o).bytes%boundary)
	}
	for _, w := range ways {
		key.WriteString(", " + w.name)
	}
	return key.String(), nil
}

// fastest tries the ways on memory taken for that; ok is false where there is none.
func (v vendor) fastest(p *ir.Program, s *ir.Step, ways []way) (fastest int, ok bool, err error) {
	alone := alone(p, s)
	memory, err := v.card.MemAlloc(alone.Bytes(ir.Work))
	if err != nil {
		return 0, false, nil
	}
	defer func() { err = errors.Join(err, v.card.MemFree(memory)) }()
	trials := make([]*Exec, len(ways))
	defer func() {
		for _, e := range trials {
			if e != nil {
				err = errors.Join(err, e.release())
			}
		}
	}()
	for i, w := range ways {
		if trials[i], err = v.trial(alone, w, memory); err != nil {
			return 0, false, fmt.Errorf("try %s: %w", w.name, err)
		}
	}
	fastest, err = choices.Fastest(len(ways), func(i int) (float64, error) {
		e := trials[i]
		if e == nil {
			return 0, errNoWay
		}
		return choices.Measure(v.card.API, func(s cuda.Stream) error {
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

// alone is a program of one step, whose operands lie in work memory, each as far from a boundary as in p.
func alone(p *ir.Program, s *ir.Step) *ir.Program {
	one := *s
	q := &ir.Program{Name: "trial", Target: p.Target}
	move := func(list []ir.Operand) (moved []ir.Operand) {
		for _, o := range list {
			size := o.DType.Size()
			offset := q.Size[ir.Work]*wordBytes/size + at(o).bytes%boundary/size
			o.Region, o.Offset = ir.Work, offset
			q.Size[ir.Work] += blocks(extent(o).to-q.Size[ir.Work]*wordBytes, boundary) * boundary / wordBytes
			moved = append(moved, o)
		}
		return moved
	}
	one.In, one.Out = move(s.In), move(s.Out)
	q.Steps = []ir.Step{one}
	return q
}

// trial makes a program of one step ready to be measured, done in a way. It is nil where that is none, or there is no memory for it.
func (v vendor) trial(p *ir.Program, w way, memory cuda.Ptr) (e *Exec, err error) {
	e = &Exec{card: v.e.card, shared: v.e.shared, stream: v.e.card.Stream, tools: v.e.tools}
	e.base[ir.Work] = memory
	give := func(err error) (*Exec, error) { return nil, errors.Join(err, e.release()) }
	if e.plan, err = newPlan(p, only{vendor{e, v.toolbox}, w}, false); errors.Is(err, errNoWay) {
		return give(nil)
	} else if err != nil {
		return give(err)
	}
	if err := e.memory(); err != nil {
		return give(nil)
	}
	if err := e.bindAll(); err != nil {
		return give(err)
	}
	return e, nil
}

// only is the libraries of a trial.
type only struct {
	vendor
	way way
}

func (o only) choose(*planner, *ir.Step) (way, error) { return o.way, nil }
