package exec

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// run is a run on the card's thread. The first one goes task by task, by which everything that is loaded late, in the driver or in a
// library, is loaded outside of a capture. The second captures each segment as a graph, which from then on is launched.
//
// A run has a slot until it is waited for. It is not waited for here.
func (e *Exec) run(ctx context.Context, rt *ir.Runtime) (s *slot, err error) {
	s = &e.slots[e.runs%slots]
	if err := e.finish(s); err != nil { // of a run that nobody has waited for
		return nil, err
	}
	e.image = 0
	if e.plan.framed() || e.plan.reported() > 0 {
		e.image = int(e.runs % slots)
	}
	e.plan.write(e.control(e.image), rt)
	stream, how, timed := e.shared, e.contest.now, false
	if direct := e.careful || e.runs == 0; direct {
		stream = e.card.Stream
		err = e.join()
	} else {
		timed = !e.contest.over()
		err = e.capture(how)
	}
	if err != nil {
		return nil, err
	}
	linked, agreed := false, false
	defer func() {
		if err != nil { // nothing of the run is left in the stream
			err = errors.Join(err, e.card.StreamSynchronize(stream))
		}
		if linked {
			err = errors.Join(err, e.link.End(stream))
		}
		if err != nil {
			return
		}
		if timed {
			e.contest.began(how)
			err = e.card.EventRecord(s.ended, stream)
		}
		if !linked {
			e.contest.decide(e.contest.ballot())
		}
		if err = errors.Join(err, e.card.EventRecord(s.done, stream)); err != nil {
			return
		}
		e.runs++
		*s = slot{begun: s.begun, ended: s.ended, done: s.done, run: e.runs, image: e.image, busy: true, linked: linked, how: how, timed: timed}
		if stream != e.shared {
			// What comes next goes into the shared stream.
			err = e.card.StreamWaitEvent(e.shared, s.done)
		}
	}()
	for i := range e.parts {
		p := &e.parts[i]
		if first := e.first(i); first > e.plan.commit {
			ctx = context.Background()
		} else if err := ctx.Err(); err != nil {
			return nil, stepError(e.plan.program, first, err)
		}
		if p.linked && !agreed {
			if err := e.agree(ctx, rt.Comm); err != nil {
				return nil, err
			}
			if agreed = true; !linked {
				linked = true
				e.link.Begin()
			}
		}
		if timed && i == 0 { // when the others have come
			if err := e.card.EventRecord(s.begun, stream); err != nil {
				return nil, err
			}
		}
		if err := e.put(p, how, stream); err != nil {
			return nil, err
		}
		switch p.end {
		case verify:
			if err := e.card.StreamSynchronize(stream); err != nil {
				return nil, inStream(err)
			}
			if err := e.plan.verify(e.control(e.image)); err != nil {
				return nil, err
			}
			agreed = false // others may have found an index that is out of range
		case exchange:
			if rt.Comm == nil {
				continue
			}
			if p.step > e.plan.commit {
				ctx = context.Background()
			}
			if err := e.exchange(ctx, rt.Comm, p.step, stream); err != nil {
				return nil, stepError(e.plan.program, p.step, err)
			}
		}
	}
	return s, nil
}

// slots is how many runs may be under way.
const slots = 4

// slot is what is known of a run that may be under way.
type slot struct {
	done cuda.Event
	// begun and ended are there for runs that are timed, done for all: an event without a time takes less.
	begun, ended cuda.Event
	run          uint64
	image        int  // of the control block
	busy         bool // nobody has waited for it
	// linked runs met other ranks' cards.
	linked bool
	how    int  // it was arranged
	timed  bool // for the contest of arrangements
}

// finish waits for a slot's run and gives its error.
func (e *Exec) finish(s *slot) error {
	if !s.busy {
		return nil
	}
	s.busy = false
	if err := e.card.EventSynchronize(s.done); err != nil {
		return inStream(err)
	}
	if s.linked {
		if err := e.link.Err(); err != nil {
			return err
		}
	}
	if s.timed {
		ms, err := e.card.EventElapsed(s.begun, s.ended)
		if err != nil {
			return err
		}
		e.contest.note(s.how, float64(ms))
	}
	return e.plan.verify(e.control(s.image))
}

// imageOf is a run's pinned memory.
func (e *Exec) imageOf(image int) []byte {
	n := e.plan.imageBytes()
	return e.pinned.Bytes()[image*n : (image+1)*n]
}

// control is a run's control block there.
func (e *Exec) control(image int) []byte { return e.imageOf(image)[:e.plan.controlBytes()] }

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

// join lets the Exec's own stream wait for what the card's has been given.
func (e *Exec) join() error {
	if err := e.card.EventRecord(e.ready, e.shared); err != nil {
		return err
	}
	return e.card.StreamWaitEvent(e.card.Stream, e.ready)
}

// put gives the stream a part's work.
func (e *Exec) put(p *part, how int, stream cuda.Stream) error {
	if len(p.work) == 0 {
		return nil
	}
	if g := p.arranged[how].graphs[e.image]; g != 0 && stream == e.shared {
		return e.card.GraphLaunch(g, stream)
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

// capture makes a graph of every part in an arrangement, with the current image of the control block, once.
func (e *Exec) capture(how int) error {
	if e.captures[how][e.image] {
		return nil
	}
	for i := range e.parts {
		p := &e.parts[i]
		if a := &p.arranged[how]; len(p.work) > 0 && a.graphs[e.image] == 0 {
			if err := e.captured(p, a); err != nil {
				return fmt.Errorf("capture steps %d to %d: %w", e.first(i), p.step-1, err)
			}
		}
	}
	e.captures[how][e.image] = true
	return nil
}

func (e *Exec) captured(p *part, a *arrangement) error {
	made, err := e.card.Capture(e.card.Stream, func() error { return e.branch(p, a) })
	if err != nil {
		return err
	}
	a.graphs[e.image] = made
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
	buf := ir.Words[float32](e.staged.Bytes())[:n]
	if err := comm.Collective(ctx, s.Op.(ir.Collective), buf); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	return e.card.MemcpyHtoD(at, e.staged, 0, 4*n, stream)
}
