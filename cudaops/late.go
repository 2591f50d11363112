package cudaops

import (
	"errors"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// lateBytes is the most that can be read without waiting at once.
const lateBytes = 64

// late is a place in pinned memory for a small read that is waited for later, and
// the event that says that it is done.
type late struct {
	pinned cuda.Pinned
	done   cuda.Event
}

// readLate begins to read n bytes from the card, after all work that was given to
// the stream before.
func (t *transfer) readLate(src cuda.Ptr, n int) (wait func(dst []byte) error, err error) {
	var l *late
	err = t.locked(func() error {
		if l, err = t.lateRead(); err != nil {
			return err
		}
		if err := t.card.MemcpyDtoH(l.pinned, 0, src, n, t.card.Stream); err != nil {
			return err
		}
		return t.card.EventRecord(l.done, t.card.Stream)
	})
	if err != nil {
		return nil, err
	}
	return func(dst []byte) error {
		return t.locked(func() error {
			if err := t.card.EventSynchronize(l.done); err != nil {
				return err
			}
			copy(dst, l.pinned.Bytes()[:n])
			t.idle = append(t.idle, l)
			return nil
		})
	}, nil
}

// lateRead gives a place that is free. There are as many as were ever under way at
// once.
func (t *transfer) lateRead() (*late, error) {
	if n := len(t.idle); n > 0 {
		l := t.idle[n-1]
		t.idle = t.idle[:n-1]
		return l, nil
	}
	l := new(late)
	var err error
	if l.pinned, err = t.card.MemHostAlloc(lateBytes); err != nil {
		return nil, err
	}
	if l.done, err = t.card.EventCreate(false); err != nil {
		return nil, errors.Join(err, t.card.MemFreeHost(l.pinned))
	}
	return l, nil
}
