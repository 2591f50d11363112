package dp

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// earlyBytes is what an input must have to be sent while the card computes the step before. A smaller one is there sooner when it waits
// its turn.
const earlyBytes = 1 << 20

// second is where inputs lie that have been sent before the program can take them. Its programs, which run one at a time, share it.
// It is given up where memory is short.
type second struct {
	mem  ir.DeviceMemory
	none bool // there is no room for it
	log  *slog.Logger
}

// forInput gives memory to write a program's input to before the steps given to the device are done, or nil where it is to be written
// after them.
func (s *second) forInput(dev ir.Device, in ir.DeviceMemory) (ir.EarlyWriter, error) {
	if _, copies := in.(ir.Copier); !copies || in.Len() < earlyBytes || s.none {
		return nil, nil
	}
	if s.bytes() < in.Len() {
		if err := s.free(); err != nil {
			return nil, err
		}
		m, err := alloc(dev, "second input", in.Len())
		if isFull(err) {
			return nil, s.giveUp(dev)
		}
		if err != nil {
			return nil, err
		}
		s.mem = m
	}
	early, _ := s.mem.(ir.EarlyWriter)
	return early, nil
}

// giveUp goes on without a second input.
func (s *second) giveUp(dev ir.Device) error {
	s.none = true
	s.log.Warn(fmt.Sprintf("dp: from now on batches are sent to %s between steps, not during them: there is no room for a second input", dev))
	return s.free()
}

// isFull is whether a device has no more memory.
func isFull(err error) bool {
	var full *cudaops.OutOfMemoryError
	return errors.As(err, &full)
}

// bytes is what it takes of the device's memory.
func (s *second) bytes() int64 {
	if s.mem == nil {
		return 0
	}
	return s.mem.Len()
}

func (s *second) free() error {
	if s.mem == nil {
		return nil
	}
	err := s.mem.Free()
	s.mem = nil
	return err
}

// placed is a part of a batch that lies on the cards.
type placed struct {
	batch *Batch
	index int
}

// fill gives a program its input: the job's share of samples, early where the step may be ahead of its caller.
func (j *stepJob) fill(r *rank, l *loaded, part *run, index int) error {
	in := l.mem[ir.Input]
	want := placed{j.batch, index}
	if want == l.holds && j.batch != nil {
		return nil
	}
	l.holds = placed{}
	if j.batch != nil {
		err := copyMemory(in, j.batch.mem[r.index-j.t.Rank()][index], in.Len())
		if err == nil {
			l.holds = want
		}
		return err
	}
	write := in.Write
	var early ir.EarlyWriter
	if j.late != nil && l.starts() {
		var err error
		if early, err = r.second.forInput(r.dev, in); err != nil {
			return err
		}
		if early != nil {
			write = early.WriteEarly
		}
	}
	here := data.Range{Lo: part.share.Lo - j.first, Hi: part.share.Hi - j.first}
	if err := scatter(write, part.prog.x.Offset, j.x, j.t.cfg.dim, here); err != nil {
		return err
	}
	if err := scatter(write, part.prog.y.Offset, j.y, j.plan.dimY, here); err != nil {
		return err
	}
	if early == nil {
		return nil
	}
	return copyMemory(in, early, in.Len())
}

// starts reports whether the program's device can run ahead of its caller.
func (l *loaded) starts() bool {
	_, starts := l.exec.(ir.Starter)
	return starts
}

// copyMemory copies the first n bytes within a device.
func copyMemory(dst, src ir.DeviceMemory, n int64) error {
	if c, ok := dst.(ir.Copier); ok {
		return c.CopyFrom(src, n)
	}
	from := src.Host()
	if from == nil {
		return fmt.Errorf("dp: %T can't be copied from", src)
	}
	return dst.Write(0, from[:n])
}

// scatter writes the samples of a share, along dim of b, at an offset in elements.
func scatter(write func(off int64, src []byte) error, offset int, b batch, dim int, share data.Range) error {
	inner := 4
	for _, d := range b.shape[dim+1:] {
		inner *= d
	}
	outer := 1
	for _, d := range b.shape[:dim] {
		outer *= d
	}
	n := b.shape[dim]
	at := int64(4 * offset)
	for o := range outer {
		piece := b.bytes[(o*n+share.Lo)*inner : (o*n+share.Hi)*inner]
		if err := write(at, piece); err != nil {
			return err
		}
		at += int64(len(piece))
	}
	return nil
}
