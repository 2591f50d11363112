package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// Exec is a program ready to run on the CPU.
type Exec struct {
	program *ir.Program
	steps   []step
	pool    *kernel.Pool
	closed  bool
	commit  int // the step after which the context no longer stops a run; see [ir.Executable]

	// The run in progress.
	ctx context.Context
	rt  *ir.Runtime
}

var _ ir.Executable = (*Exec)(nil)

// step is one step of a program, made ready. It allocates nothing.
type step interface {
	run(e *Exec) error
}

func load(p *ir.Program, mem [ir.NumRegions][]byte, pool *kernel.Pool) (*Exec, error) {
	m, err := newMemory(p, mem)
	if err != nil {
		return nil, fmt.Errorf("host: %s: load: %w", p.Name, err)
	}
	for i, x := range p.Consts {
		m.i[ir.Consts][i] = int32(x)
	}
	e := &Exec{program: p, pool: pool, commit: len(p.Steps), steps: make([]step, len(p.Steps))}
	b := &builder{memory: m, pool: pool, kernels: pool.Vector(), threads: pool.Threads()}
	for i := range p.Steps {
		s := &p.Steps[i]
		if e.steps[i], err = b.build(s); err != nil {
			return nil, e.stepError(i, err)
		}
		for _, o := range s.Out {
			if o.Region == ir.Params || o.Region == ir.State {
				e.commit = min(e.commit, i)
			}
		}
		if c, ok := s.Op.(ir.Collective); ok && !c.ActiveOnly {
			e.commit = min(e.commit, i)
		}
	}
	b.finish()
	return e, nil
}

// Run runs the program once; see [ir.Executable].
func (e *Exec) Run(ctx context.Context, rt *ir.Runtime) error {
	if e.closed {
		return fmt.Errorf("host: %s: run: %w", e.program.Name, errClosed)
	}
	e.ctx, e.rt = ctx, rt
	for i, s := range e.steps {
		if i > e.commit {
			e.ctx = context.Background()
		} else if err := ctx.Err(); err != nil {
			return e.stepError(i, err)
		}
		if err := s.run(e); err != nil {
			return e.stepError(i, err)
		}
	}
	return nil
}

var errClosed = errors.New("closed")

func (e *Exec) stepError(i int, err error) error {
	s := &e.program.Steps[i]
	name := s.Name
	if name != "" {
		name += " "
	}
	return fmt.Errorf("host: %s: step %d %s(%s): %w", e.program.Name, i, name, opName(s.Op), err)
}

func opName(op ir.Op) string { return strings.TrimPrefix(fmt.Sprintf("%T", op), "ir.") }

// Close ends the use of the memories. A closed Exec does not run.
func (e *Exec) Close() error {
	e.closed, e.steps = true, nil
	return nil
}

// builder makes steps ready. Loops of all steps share one scratch a thread, which stays in the cache.
type builder struct {
	*memory
	pool    *kernel.Pool
	kernels *kernel.Vector
	threads int
	scratch int // float32 a thread
	after   []func([]scratch)
}

// scratch is what a thread works in.
type scratch struct {
	f    []float32 // as much as any step needs
	wide []float64 // tileLen accumulators
}

// need asks for n float32 of scratch a thread; bind is called with them once all steps are built.
func (b *builder) need(n int, bind func([]scratch)) {
	b.scratch = max(b.scratch, n)
	b.after = append(b.after, bind)
}

func (b *builder) finish() {
	all := make([]scratch, b.threads)
	for t := range all {
		all[t] = scratch{floats(b.scratch), make([]float64, tileLen)}
	}
	for _, bind := range b.after {
		bind(all)
	}
}

func (b *builder) build(s *ir.Step) (step, error) {
	switch op := s.Op.(type) {
	case ir.Fused:
		return b.fused(s)
	case ir.Reduce:
		return b.reduce(s, op)
	case ir.MatMul:
		return b.product(s)
	case ir.Conv2d:
		return b.conv(s, op.Conv)
	case ir.Conv2dGradX:
		return b.convGradX(s, op)
	case ir.Conv2dGradW:
		return b.convGradW(s, op)
	case ir.Pool2d:
		return b.poolForward(s, op)
	case ir.Pool2dGrad:
		return b.poolGrad(s, op)
	case ir.Softmax:
		return b.softmax(s, op)
	case ir.SoftmaxGrad:
		return b.softmaxGrad(s, op)
	case ir.CrossEntropy:
		return b.crossEntropy(s, op)
	case ir.CrossEntropyGrad:
		return b.crossEntropyGrad(s, op)
	case ir.ArgMax:
		return b.argMax(s, op)
	case ir.Gather:
		return b.gather(s)
	case ir.ScatterAdd:
		return b.scatterAdd(s, op)
	case ir.Concat:
		return b.concat(s, op)
	case ir.Unslice:
		return b.unslice(s, op)
	case ir.Copy:
		return b.copy(s)
	case ir.CheckIndex:
		return b.checkIndex(s, op)
	case ir.Collective:
		return b.collective(s, op)
	}
	return nil, errors.New("no such step on the host")
}
