package tensorboard

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// patience is how long what was written may be in memory only, as long as more is written.
const patience = 2 * time.Second

// Writer writes an event file. Make one with [Create], end it with [Writer.Close].
type Writer struct {
	mu      sync.Mutex
	file    *os.File
	buffer  *bufio.Writer
	flushed time.Time
	event   []byte // for the next one; kept for its memory
	record  []byte
}

// ErrClosed is the error of writing after Close.
var ErrClosed = errors.New("the writer is closed")

// Create makes a new event file in a folder, and the folder if there is none.
func Create(folder string) (*Writer, error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, fmt.Errorf("tensorboard: folder for events: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost" // it only makes names differ
	}
	now := time.Now()
	var file *os.File
	for n := 0; file == nil; n++ {
		// TensorBoard takes what has tfevents in its name, and reads a folder's files in the order of their names.
		name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", now.Unix(), host, os.Getpid(), n)
		file, err = os.OpenFile(filepath.Join(folder, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("tensorboard: event file: %w", err)
		}
	}
	w := &Writer{file: file, buffer: bufio.NewWriter(file), flushed: now}
	w.event = appendVersion(nil, now)
	if err := errors.Join(w.put(), w.Flush()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return w, nil
}

// Name is the file's path.
func (w *Writer) Name() string { return w.file.Name() }

// Scalar writes the value that tag has at a step. The file keeps it as a float32.
func (w *Writer) Scalar(tag string, step int, value float64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.buffer == nil {
		return fmt.Errorf("tensorboard: %s of step %d: %w", tag, step, ErrClosed)
	}
	now := time.Now()
	w.event = appendScalar(w.event[:0], now, tag, step, value)
	if err := w.put(); err != nil {
		return err
	}
	if now.Sub(w.flushed) < patience {
		return nil
	}
	return w.flush(now)
}

// put writes the event that was made.
func (w *Writer) put() error {
	w.record = appendRecord(w.record[:0], w.event)
	if _, err := w.buffer.Write(w.record); err != nil {
		return fmt.Errorf("tensorboard: %w", err)
	}
	return nil
}

// Flush brings what was written to the file.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.buffer == nil {
		return fmt.Errorf("tensorboard: flush: %w", ErrClosed)
	}
	return w.flush(time.Now())
}

func (w *Writer) flush(now time.Time) error {
	w.flushed = now
	if err := w.buffer.Flush(); err != nil {
		return fmt.Errorf("tensorboard: %w", err)
	}
	return nil
}

// Close brings what was written to the file and closes it. A second Close does nothing.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.buffer == nil {
		return nil
	}
	err := w.flush(time.Now())
	w.buffer = nil
	if e := w.file.Close(); e != nil {
		err = errors.Join(err, fmt.Errorf("tensorboard: %w", e))
	}
	return err
}
