package exec

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// run is a run on the card's thread. The first one goes task by task, by which everything that is loaded late, in the driver or in a
// library, is loaded outside of a capture. The second captures each segment as a graph, which from then on is launched.
func (e *Exec) run(ctx context.Context, rt *ir.Runtime) (err error) {
	e.plan.write(e.pinned.Bytes(), rt)
	stream := e.shared
	if direct := e.careful || e.runs == 0; direct {
		stream = e.card.Stream
		err = e.join()
	} else if e.runs == 1 {
		err = e.capture()
	}
	if err != nil {
		return err
	}
	defer func() {
		// Also after an error nothing of the run is left in the stream.
		if late := e.card.StreamSynchronize(stream); err == nil && late != nil {
			err = inStream(late)
		}
		if err == nil {
			err = e.plan.verify(e.pinned.Bytes())
		}
	}()
	for i := range e.parts {
		p := &e.parts[i]
		if first := e.first(i); first > e.plan.commit {
			ctx = context.Background()
		} else if err := ctx.Err(); err != nil {
			return stepError(e.plan.program, first, err)
		}
		if err := e.put(p, stream); err != nil {
			return err
		}
		switch p.end {
		case verify:
			if err := e.card.StreamSynchronize(stream); err != nil {
				return inStream(err)
			}
			if err := e.plan.verify(e.pinned.Bytes()); err != nil {
				return err
			}
		case exchange:
			if rt.Comm == nil {
				continue
			}
			if p.step > e.plan.commit {
				ctx = context.Background()
			}
			if err := e.exchange(ctx, rt.Comm, p.step, stream); err != nil {
				return stepError(e.plan.program, p.step, err)
			}
		}
	}
	e.runs++
	return nil
}

// inStream says how to learn more about an error that the card reports late.
func inStream(err error) error {
	return fmt.Errorf("in one of the steps, %s=off tells which: %w", GraphVariable, err)
}

// first is the step that a part begins with.
func (e *Exec) first(i int) int {
	if i == 0 {
		return 0
	}
	before := &e.parts[i-1]
	if before.end == exchange {
		return before.step + 1
	}
	return before.step
}

// join lets the Exec's own stream wait for what the card's has been given, and the libraries work in it.
func (e *Exec) join() error {
	if err := e.tools.use(e.card.Stream); err != nil {
		return err
	}
	if err := e.card.EventRecord(e.ready, e.shared); err != nil {
		return err
	}
	return e.card.StreamWaitEvent(e.card.Stream, e.ready)
}

// put gives the stream a part's work.
func (e *Exec) put(p *part, stream cuda.Stream) error {
	if len(p.work) == 0 {
		return nil
	}
	if p.graph != 0 && stream == e.shared {
		return e.card.GraphLaunch(p.graph, stream)
	}
	for _, w := range p.work {
		err := w.put()
		if err == nil && e.careful {
			err = e.card.StreamSynchronize(stream)
		}
		if err != nil {
			return stepError(e.plan.program, w.step, err)
		}
	}
	return nil
}

// capture makes a graph of every part.
func (e *Exec) capture() error {
	if err := e.tools.use(e.card.Stream); err != nil {
		return err
	}
	for i := range e.parts {
		if p := &e.parts[i]; len(p.work) > 0 && p.graph == 0 {
			if err := e.captured(p); err != nil {
				return fmt.Errorf("capture steps %d to %d: %w", e.first(i), p.step-1, err)
			}
		}
	}
	return nil
}

func (e *Exec) captured(p *part) error {
	if err := e.card.BeginCapture(e.card.Stream); err != nil {
		return err
	}
	var failed error
	for _, w := range p.work {
		if err := w.put(); err != nil {
			failed = stepError(e.plan.program, w.step, err)
			break
		}
	}
	g, err := e.card.EndCapture(e.card.Stream)
	if failed != nil || err != nil {
		if g != 0 {
			err = errors.Join(err, e.card.GraphDestroy(g))
		}
		return errors.Join(failed, err)
	}
	made, err := e.card.GraphInstantiate(g)
	if err := errors.Join(err, e.card.GraphDestroy(g)); err != nil {
		return err
	}
	p.graph = made
	e.later(func() error { return e.card.GraphExecDestroy(made) })
	return nil
}

// exchange lets a group carry out a collective on a step's range, by way of pinned memory.
func (e *Exec) exchange(ctx context.Context, comm ir.Comm, step int, stream cuda.Stream) error {
	s := &e.plan.program.Steps[step]
	o := s.Out[0]
	n := o.Shape.Size()
	if e.staged == (cuda.Pinned{}) {
		var err error
		if e.staged, err = e.card.MemHostAlloc(max(4*e.plan.staging, 4)); err != nil {
			return err
		}
		e.later(func() error { return e.card.MemFreeHost(e.staged) })
	}
	at := e.address(at(o))
	if n > 0 {
		if err := e.card.MemcpyDtoH(e.staged, 0, at, 4*n, stream); err != nil {
			return err
		}
	}
	if err := e.card.StreamSynchronize(stream); err != nil {
		return inStream(err)
	}
	buf := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(e.staged.Bytes()))), n)
	if err := comm.Collective(ctx, s.Op.(ir.Collective), buf); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	return e.card.MemcpyHtoD(at, e.staged, 0, 4*n, stream)
}
