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
	pipe   *os.File // the end that is read
	file   *os.File // takes every byte; nil: none
	to     *outlet  // takes lines; nil: none
	prefix string
	tail   *tail // of stderr; nil: none
	logger *slog.Logger

	drain chan struct{} // closed once nothing should hold the pipe any more
	done  chan struct{} // closed when the goroutine ends
}

// newStream makes the pipe. The returned end is the worker's.
func newStream(path string, to *outlet, prefix string, logger *slog.Logger) (s *stream, worker *os.File, err error) {
	s = &stream{to: to, prefix: prefix, logger: logger, drain: make(chan struct{}), done: make(chan struct{})}
	if path != "" {
		if s.file, err = os.Create(path); err != nil {
			return nil, nil, fmt.Errorf("launcher: log file: %w", err)
		}
	}
	if s.pipe, worker, err = os.Pipe(); err != nil {
		if s.file != nil {
			err = errors.Join(err, s.file.Close())
		}
		return nil, nil, fmt.Errorf("launcher: pipe for a worker's output: %w", err)
	}
	return s, worker, nil
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
	print := func() {
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
		print()
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
				s.logger.Warn("a process of the job still holds a worker's output, and is not waited for", "of", s.prefix, "error", err)
			}
			break
		}
	}
	lines.end(collect)
	print()
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
