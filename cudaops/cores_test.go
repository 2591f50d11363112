package cudaops

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// A crew copies every byte once, each piece only when it may be, whoever does it.
func TestCrew(t *testing.T) {
	random := rand.NewChaCha8([32]byte{2})
	for _, bytesOf := range []int{1, coreBytes - 1, coreBytes, 3*coreBytes + 5, 12*coreBytes + 1} {
		for _, piece := range []int{coreBytes, 4 * coreBytes, 64 * coreBytes} {
			src, dst := make([]byte, bytesOf), make([]byte, bytesOf)
			_, _ = random.Read(src) // never fails
			c := newCrew(bytesOf, piece, func(lo, hi int) {
				if lo/piece != (hi-1)/piece {
					t.Errorf("bytes %d to %d lie in several pieces of %d", lo, hi, piece)
				}
				for i := lo; i < hi; i++ {
					dst[i] ^= src[i]
				}
			})
			for i := range c.left {
				if c.copied(i) || !bytes.Equal(dst[i*piece:], make([]byte, bytesOf-i*piece)) {
					t.Errorf("%d bytes in pieces of %d: piece %d is copied before it may be", bytesOf, piece, i)
				}
				c.allow(i + 1)
				c.finish(i)
			}
			c.end()
			if !bytes.Equal(dst, src) {
				t.Errorf("%d bytes in pieces of %d: not what was to be copied", bytesOf, piece)
			}
		}
	}
}

// A crew that is let go before the end copies nothing any more.
func TestCrewEndsEarly(t *testing.T) {
	dst := make([]byte, 32*coreBytes)
	c := newCrew(len(dst), 8*coreBytes, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst[i] = 1
		}
	})
	c.allow(2)
	c.finish(0)
	c.end()
	copied := bytes.Count(dst, []byte{1})
	if c.work() || copied < 8*coreBytes || copied > 16*coreBytes {
		t.Errorf("%d bytes are copied, of %d that may be", copied, 16*coreBytes)
	}
}
