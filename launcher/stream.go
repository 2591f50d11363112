package launcher

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// What a pipe may still give after all of the job that could be found has been killed: what is in it, which is no more than the
// system lets a pipe hold, and nothing that takes longer than a moment.
const (
	idleLimit = 2 * time.Second
	pipeLimit = 1 << 20
)

var errHeld = errors.New("it does not stop printing")

// stream is one of a worker's two streams: a goroutine reads the pipe to its end and passes it on.
type stream struct {
	to     *outlet // takes lines; nil: none
	rank   int     // whose it is
	name   string  // "stdout" or "stderr"
	prefix string  // of every line
	tail   *tail   // of stderr; nil: none
	logger *slog.Logger

	pipe  *os.File      // the end that is read
	file  *os.File      // takes every byte; nil: none
	drain chan struct{} // closed once nothing should hold the pipe any more
	done  chan struct{} // closed when the goroutine ends
}

// open makes the pipe, and the file if it is to have one. The end that it gives is the worker's.
func (s *stream) open(file string) (worker *os.File, err error) {
	s.drain, s.done = make(chan struct{}), make(chan struct{})
	if s.pipe, worker, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("launcher: pipe for a worker's output: %w", err)
	}
	if file != "" {
		if s.file, err = os.Create(file); err != nil {
			return nil, errors.Join(fmt.Errorf("launcher: log file: %w", err), s.pipe.Close(), worker.Close())
		}
	}
	return worker, nil
}

// read passes on what comes until the pipe's end.
func (s *stream) read() {
	defer close(s.done)
	defer s.pipe.Close()
	var lines splitter
	var out []byte
	collect := func(p piece) {
		if s.tail != nil {
			s.tail.line(p)
		}
		if s.to != nil {
			out = p.appendTo(out, s.prefix)
		}
	}
	flush := func() {
		if s.to != nil {
			s.to.write(out)
		}
		out = out[:0]
	}
	chunk := make([]byte, maxLine)
	for late := 0; ; {
		n, err := s.pipe.Read(chunk)
		s.keep(chunk[:n])
		if s.tail != nil {
			s.tail.write(chunk[:n])
		}
		lines.feed(chunk[:n], collect)
		flush()
		if err == nil {
			select {
			case <-s.drain: // a pipe that still carries something is not idle
				err = s.pipe.SetReadDeadline(time.Now().Add(idleLimit))
				if late += n; late > pipeLimit {
					err = errHeld
				}
			default:
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.logger.Warn("a process of the job still holds a worker's output, and is not waited for", "rank", s.rank, "stream", s.name, "error", err)
			}
			break
		}
	}
	lines.end(collect)
	flush()
	if s.file != nil {
		if err := s.file.Close(); err != nil {
			s.logger.Warn("a log file is incomplete", "error", err)
		}
	}
}

// keep writes to the file, up to its first error.
func (s *stream) keep(chunk []byte) {
	if s.file == nil || len(chunk) == 0 {
		return
	}
	if _, err := s.file.Write(chunk); err != nil {
		s.logger.Warn("a log file is incomplete", "error", errors.Join(err, s.file.Close()))
		s.file = nil
	}
}

// finish says that nothing should hold the pipe any more.
func (s *stream) finish() {
	close(s.drain)
	// An error says that the goroutine has closed the pipe, as it should.
	_ = s.pipe.SetReadDeadline(time.Now().Add(idleLimit))
}
