package cudaops

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Pieces of the pinned memory that transfers go through. A piece takes the bus
// some 40 µs, much more than the calls that it costs. One core fills it in several
// times as long, so cores share it.
const (
	transferPieces = 4
	pieceBytes     = int(2 * mib)
	coreBytes      = int(256 * kib) // are worth waking another core for
)

// transfer copies between the host and a card, in the order of the card's stream.
// Memory that the card can reach by itself must be pinned, which Go's is not; so
// data goes through a ring of pinned pieces. While one is on its way, the next is
// filled or emptied.
type transfer struct {
	card *cuda.Card

	mu     sync.Mutex
	pinned cuda.Pinned // nothing before the first transfer
	bytes  []byte      // of pinned
	free   [transferPieces]cuda.Event
	next   int // piece
	idle   []*late
}

// prepare makes the ring at the first call.
func (t *transfer) prepare() error {
	if t.bytes != nil {
		return nil
	}
	pinned, err := t.card.MemHostAlloc(transferPieces * pieceBytes)
	if err != nil {
		return fmt.Errorf("pinned memory for transfers: %w", err)
	}
	for i := range t.free {
		if t.free[i], err = t.card.EventCreate(false); err != nil {
			for _, e := range t.free[:i] {
				err = errors.Join(err, t.card.EventDestroy(e))
			}
			return errors.Join(err, t.card.MemFreeHost(pinned))
		}
	}
	t.pinned, t.bytes = pinned, pinned.Bytes()
	return nil
}

// take waits until the next piece of the ring is free, and gives its number.
func (t *transfer) take() (int, error) {
	i := t.next
	if err := t.card.EventSynchronize(t.free[i]); err != nil {
		return 0, err
	}
	t.next = (i + 1) % transferPieces
	return i, nil
}

// copyBytes copies as the built-in copy does, a long src on several cores.
func copyBytes(dst, src []byte) {
	if len(src) < 2*coreBytes {
		copy(dst, src)
		return
	}
	var cores sync.WaitGroup
	for len(src) > coreBytes {
		d, s := dst, src[:coreBytes]
		cores.Go(func() { copy(d, s) })
		dst, src = dst[coreBytes:], src[coreBytes:]
	}
	copy(dst, src)
	cores.Wait()
}

// piece is n bytes of a piece.
func (t *transfer) piece(i, n int) []byte { return t.bytes[i*pieceBytes:][:n] }

// locked runs f with the ring ready, on a thread with the card's context.
func (t *transfer) locked(f func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.card.Do(func() error {
		if err := t.prepare(); err != nil {
			return err
		}
		return f()
	})
}

// write copies src to the card. It returns when src may change, which is before
// the bytes are there: an error of the card may come with a later call.
func (t *transfer) write(dst cuda.Ptr, src []byte) error {
	return t.locked(func() error {
		for len(src) > 0 {
			i, err := t.take()
			if err != nil {
				return err
			}
			n := min(len(src), pieceBytes)
			copyBytes(t.piece(i, n), src[:n])
			if err := t.card.MemcpyHtoD(dst, t.pinned, i*pieceBytes, n, t.card.Stream); err != nil {
				return err
			}
			if err := t.card.EventRecord(t.free[i], t.card.Stream); err != nil {
				return err
			}
			dst, src = dst+cuda.Ptr(n), src[n:]
		}
		return nil
	})
}

// read fills dst from the card, after all work that was given to the stream
// before. Of the pieces as many are on their way as the ring has.
func (t *transfer) read(dst []byte, src cuda.Ptr) error {
	type part struct {
		piece int
		dst   []byte
	}
	return t.locked(func() error {
		var coming []part
		for len(dst) > 0 || len(coming) > 0 {
			if len(dst) > 0 && len(coming) < transferPieces {
				i, err := t.take()
				if err != nil {
					return err
				}
				n := min(len(dst), pieceBytes)
				if err := t.card.MemcpyDtoH(t.pinned, i*pieceBytes, src, n, t.card.Stream); err != nil {
					return err
				}
				if err := t.card.EventRecord(t.free[i], t.card.Stream); err != nil {
					return err
				}
				coming = append(coming, part{i, dst[:n]})
				dst, src = dst[n:], src+cuda.Ptr(n)
				continue
			}
			p := coming[0]
			if err := t.card.EventSynchronize(t.free[p.piece]); err != nil {
				return err
			}
			copyBytes(p.dst, t.piece(p.piece, len(p.dst)))
			coming = coming[1:]
		}
		return nil
	})
}
