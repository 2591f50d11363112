// Package philox is the random number generator of every layer: Philox4x32-10,
// a counter-based generator (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011).
//
// A counter-based generator is a function, not a machine with a state: random
// word number i is computed from (seed, stream, i) alone, in constant time. So
// every rank, goroutine and card can make its own part of the same numbers, in
// any order and any chunking, with the same bits.
//
// # The mapping
//
// Kernels on cards reproduce exactly this. Word i of stream t with seed s is
//
//	key     = {lo(s), hi(s)}
//	counter = {lo(i/4), hi(i/4), lo(t), hi(t)}
//	word    = Block(key, counter)[i%4]
//
// where lo and hi are the low and high 32 bits of a 64-bit number. Derived from
// the words, one element each:
//
//	uniform   u[i] = float32(word[i]>>8) * 2^-24                    in [0, 1)
//	Bernoulli b[i] = value if u[i] < keep, else 0
//	normal    for even i, with v = (word[i]+1) * 2^-32, w = word[i+1] * 2^-32,
//	          r = sqrt(-2 ln v), all in float64 (Box-Muller):
//	          z[i] = float32(r cos 2πw), z[i+1] = float32(r sin 2πw)
//
// Words, uniforms and Bernoulli masks are the same bits on every machine.
// Normals are the same bits on one kind of machine; elsewhere logarithm, sine
// and cosine may differ in the last place of float64, so now and then a normal
// differs in the last place of float32.
//
// # Use
//
// Take one [Stream] per purpose: [New](seed, id), where id is the number of the
// op, layer or epoch. Streams with different seeds or ids are independent. A
// Stream is an immutable value: any number of goroutines may use it at once.
// The generator is for simulation, not for secrets.
package philox

// Multipliers of the two halves of the counter, and the steps (Weyl constants,
// from the golden ratio and the square root of 3) of the two key words.
const (
	mul0  = 0xD2511F53
	mul1  = 0xCD9E8D57
	step0 = 0x9E3779B9
	step1 = 0xBB67AE85
)

// Block encrypts the counter with the key: four random words. It is a bijection
// of counters for every key.
func Block(key [2]uint32, ctr [4]uint32) [4]uint32 {
	a, b, c, d := encrypt(key[0], key[1], ctr[0], ctr[1], ctr[2], ctr[3])
	return [4]uint32{a, b, c, d}
}

// encrypt is Block on scalars, which stay in registers where arrays would not.
// The ten rounds are written out for the same reason: together twice as fast.
func encrypt(k0, k1, a, b, c, d uint32) (uint32, uint32, uint32, uint32) {
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	k0, k1 = k0+step0, k1+step1
	a, b, c, d = round(k0, k1, a, b, c, d)
	return a, b, c, d
}

func round(k0, k1, a, b, c, d uint32) (uint32, uint32, uint32, uint32) {
	p, q := mul0*uint64(a), mul1*uint64(c)
	return uint32(q>>32) ^ b ^ k0, uint32(q), uint32(p>>32) ^ d ^ k1, uint32(p)
}

// Stream is an endless (2^64 words, then round again) random-access sequence of
// random words. Make one with [New]; the zero Stream is New(0, 0).
type Stream struct {
	seed, id uint64
}

// New gives the stream number id of a seed.
func New(seed, id uint64) Stream { return Stream{seed: seed, id: id} }

// block gives words 4n..4n+3.
func (s Stream) block(n uint64) [4]uint32 {
	return Block(
		[2]uint32{uint32(s.seed), uint32(s.seed >> 32)},
		[4]uint32{uint32(n), uint32(n >> 32), uint32(s.id), uint32(s.id >> 32)},
	)
}

// Uint32At gives word i.
func (s Stream) Uint32At(i uint64) uint32 { return s.block(i / 4)[i%4] }

// FillUint32 sets dst[j] to word start+j.
func (s Stream) FillUint32(dst []uint32, start uint64) {
	if off := start % 4; off != 0 && len(dst) > 0 {
		b := s.block(start / 4)
		n := copy(dst, b[off:])
		dst, start = dst[n:], start+uint64(n)
	}
	k0, k1, t0, t1 := uint32(s.seed), uint32(s.seed>>32), uint32(s.id), uint32(s.id>>32)
	for ; len(dst) >= 4; dst, start = dst[4:], start+4 {
		n := start / 4
		dst[0], dst[1], dst[2], dst[3] = encrypt(k0, k1, uint32(n), uint32(n>>32), t0, t1)
	}
	if len(dst) > 0 {
		b := s.block(start / 4)
		copy(dst, b[:])
	}
}
