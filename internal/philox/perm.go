package philox

import "math/bits"

// Perm gives a random permutation of 0..n-1, every one equally likely (as far
// as 64-bit seeds and streams reach): Fisher-Yates from the top, with the words
// of New(seed, stream) taken in order. The same arguments give the same
// permutation on every machine. n must not be negative.
func Perm(seed, stream uint64, n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	w := wordReader{stream: New(seed, stream)}
	for i := n - 1; i > 0; i-- {
		j := w.below(uint64(i) + 1)
		p[i], p[j] = p[j], p[i]
	}
	return p
}

// wordReader hands out a stream's words in order, two at a time.
type wordReader struct {
	stream Stream
	next   uint64 // index of the first word not handed out
	buf    [4]uint32
}

// uint64 gives the next two words, the first as the low half.
func (r *wordReader) uint64() uint64 {
	off := r.next % 4
	if off == 0 {
		r.buf = r.stream.block(r.next / 4)
	}
	r.next += 2
	return uint64(r.buf[off]) | uint64(r.buf[off+1])<<32
}

// below gives a number in 0..n-1, each equally likely (Lemire, "Fast random
// integer generation in an interval", 2019): the high half of x*n, where those x
// are drawn again whose low half falls in the 2^64 mod n values too many.
func (r *wordReader) below(n uint64) uint64 {
	hi, lo := bits.Mul64(r.uint64(), n)
	if lo < n {
		for excess := -n % n; lo < excess; {
			hi, lo = bits.Mul64(r.uint64(), n)
		}
	}
	return hi
}
