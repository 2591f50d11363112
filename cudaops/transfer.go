package cudaops

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Pieces of the pinned memory that transfers go through. A long piece takes the
// bus some 40 µs, much more than the calls that it costs. There are more than a
// batch of some thousand small images takes, so that all of it is copied there
// while the card computes and the batch before is on its way.
const (
	longPieces  = 12
	longBytes   = int(2 * mib)
	shortPieces = 16
	shortBytes  = int(4 * kib)
)

// transfer copies between the host and a card. Memory that the card can reach by
// itself must be pinned, which Go's is not; so data goes through rings of pinned
// pieces: while one is on its way, the next is filled or emptied.
//
// All goes in the order of the card's stream, but for early writes. They have a
// stream of their own, and two events keep the order where it matters: copies from
// what was written early wait for the writes, and later early writes for them.
type transfer struct {
	card *cuda.Card

	mu          sync.Mutex
	long, short ring

	early          cuda.Stream // 0 before the first early write
	written, taken cuda.Event  // the last early write, and the last copy from one
}

// ring is pinned memory in pieces that are used in turn.
type ring struct {
	size   int // of a piece
	pinned cuda.Pinned
	bytes  []byte       // of pinned
	free   []cuda.Event // a piece is not on its way any more
	next   int          // piece
}

func newTransfer(card *cuda.Card) *transfer {
	return &transfer{
		card:  card,
		long:  ring{size: longBytes, free: make([]cuda.Event, longPieces)},
		short: ring{size: shortBytes, free: make([]cuda.Event, shortPieces)},
	}
}

// ring is the one for n bytes, made at the first call. What is short has one of
// its own, because a piece that waits for the card's work keeps those behind it.
func (t *transfer) ring(n int) (*ring, error) {
	r := &t.long
	if n <= shortBytes {
		r = &t.short
	}
	if r.bytes != nil {
		return r, nil
	}
	pinned, err := t.card.MemHostAlloc(len(r.free) * r.size)
	if err != nil {
		return nil, fmt.Errorf("pinned memory for transfers: %w", err)
	}
	for i := range r.free {
		if r.free[i], err = t.card.EventCreate(false); err != nil {
			for _, e := range r.free[:i] {
				err = errors.Join(err, t.card.EventDestroy(e))
			}
			return nil, errors.Join(err, t.card.MemFreeHost(pinned))
		}
	}
	r.pinned, r.bytes = pinned, pinned.Bytes()
	return r, nil
}

// take waits until the next piece of a ring is free, and gives its number.
func (t *transfer) take(r *ring) (int, error) {
	if err := t.card.EventSynchronize(r.free[r.next]); err != nil {
		return 0, err
	}
	return r.advance(), nil
}

// tryTake is take, if it need not wait.
func (t *transfer) tryTake(r *ring) (taken bool, err error) {
	if taken, err = t.card.EventDone(r.free[r.next]); taken {
		r.advance()
	}
	return taken, err
}

// advance goes on to the next piece, and gives the number of the one before.
func (r *ring) advance() int {
	i := r.next
	r.next = (i + 1) % len(r.free)
	return i
}

// at is where bytes lo to hi of a transfer lie, within a piece, that begins with
// piece first.
func (r *ring) at(first, lo, hi int) []byte {
	i := (first + lo/r.size) % len(r.free)
	return r.bytes[i*r.size+lo%r.size:][:hi-lo]
}

// locked runs f on a thread with the card's context.
func (t *transfer) locked(f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.card.Do(f)
}

// write copies src to the card. It returns when src may change, which is before
// the bytes are there: an error of the card may come with a later call.
func (t *transfer) write(dst cuda.Ptr, src []byte) error {
	return t.locked(func() error { return t.send(dst, src, t.card.Stream) })
}

// clear sets n bytes to 0.
func (t *transfer) clear(dst cuda.Ptr, n int) error {
	return t.locked(func() error { return t.card.MemsetD8(dst, 0, n, t.card.Stream) })
}

// writeEarly is write beside the work in the card's stream. Only copies from what
// was written early before are waited for; and, the first time that memory is
// written so, which written says, what somebody else may have left on its way to it.
func (t *transfer) writeEarly(dst cuda.Ptr, src []byte, written *atomic.Bool) error {
	return t.locked(func() error {
		if err := t.prepareEarly(); err != nil {
			return err
		}
		if !written.Load() {
			if err := t.card.EventRecord(t.taken, t.card.Stream); err != nil {
				return err
			}
			written.Store(true)
		}
		if err := t.card.StreamWaitEvent(t.early, t.taken); err != nil {
			return err
		}
		err := t.send(dst, src, t.early)
		return errors.Join(err, t.card.EventRecord(t.written, t.early))
	})
}

// prepareEarly makes the stream of early writes at the first call.
func (t *transfer) prepareEarly() error {
	if t.early != 0 {
		return nil
	}
	for _, e := range []*cuda.Event{&t.written, &t.taken} {
		if *e != 0 {
			continue
		}
		made, err := t.card.EventCreate(false)
		if err != nil {
			return err
		}
		*e = made
	}
	early, err := t.card.StreamCreate()
	if err != nil {
		return err
	}
	t.early = early
	return nil
}

// synchronize waits for both streams.
func (t *transfer) synchronize() error {
	return t.locked(func() error {
		err := t.card.StreamSynchronize(t.card.Stream)
		if t.early != 0 {
			err = errors.Join(err, t.card.StreamSynchronize(t.early))
		}
		return err
	})
}

// settleEarly makes what comes next in the card's stream come after early writes.
func (t *transfer) settleEarly() error {
	return t.locked(func() error { return t.card.StreamWaitEvent(t.card.Stream, t.written) })
}

// copy copies within the card; early is whether src was written early.
func (t *transfer) copy(dst, src cuda.Ptr, n int, early bool) error {
	return t.locked(func() error {
		if early {
			if err := t.card.StreamWaitEvent(t.card.Stream, t.written); err != nil {
				return err
			}
		}
		err := t.card.MemcpyDtoD(dst, src, n, t.card.Stream)
		if early {
			err = errors.Join(err, t.card.EventRecord(t.taken, t.card.Stream))
		}
		return err
	})
}

// send copies src to the card by way of a ring, in the order of a stream. Several
// cores copy it into pieces, all of which may be filled that are free. A piece
// is sent as soon as it is full.
func (t *transfer) send(dst cuda.Ptr, src []byte, s cuda.Stream) error {
	r, err := t.ring(len(src))
	if err != nil {
		return err
	}
	first := r.next
	crew := newCrew(len(src), r.size, func(lo, hi int) { copy(r.at(first, lo, hi), src[lo:hi]) })
	defer crew.end()
	for sent, taken := 0, 0; sent < len(crew.left); {
		took := taken == sent
		if took {
			_, err = t.take(r)
		} else if taken < len(crew.left) && taken < sent+len(r.free) {
			took, err = t.tryTake(r)
		}
		if err != nil {
			return err
		}
		if took {
			taken++
			crew.allow(taken)
			continue
		}
		if !crew.copied(sent) && crew.work() {
			continue
		}
		crew.finish(sent)
		i, n := (first+sent)%len(r.free), min(r.size, len(src)-sent*r.size)
		if err := t.card.MemcpyHtoD(dst+cuda.Ptr(sent*r.size), r.pinned, i*r.size, n, s); err != nil {
			return err
		}
		if err := t.card.EventRecord(r.free[i], s); err != nil {
			return err
		}
		sent++
	}
	return nil
}

// read fills dst from the card, after all work that was given to the stream
// before. Of the pieces as many are on their way as the ring has.
func (t *transfer) read(dst []byte, src cuda.Ptr) error {
	return t.locked(func() error {
		r, err := t.ring(len(dst))
		if err != nil {
			return err
		}
		first := r.next
		crew := newCrew(len(dst), r.size, func(lo, hi int) { copy(dst[lo:hi], r.at(first, lo, hi)) })
		defer crew.end()
		for read, taken := 0, 0; read < len(crew.left); {
			if taken < len(crew.left) && taken < read+len(r.free) {
				i, err := t.take(r)
				if err != nil {
					return err
				}
				n := min(r.size, len(dst)-taken*r.size)
				if err := t.card.MemcpyDtoH(r.pinned, i*r.size, src+cuda.Ptr(taken*r.size), n, t.card.Stream); err != nil {
					return err
				}
				if err := t.card.EventRecord(r.free[i], t.card.Stream); err != nil {
					return err
				}
				taken++
				continue
			}
			if err := t.card.EventSynchronize(r.free[(first+read)%len(r.free)]); err != nil {
				return err
			}
			read++
			crew.allow(read)
			crew.finish(read - 1)
		}
		return nil
	})
}
