package philox

import "math"

// chunk is how many words the fillers make before they turn them into floats:
// small enough for the stack and the first-level cache. It is even, so that
// pairs of normals stay together.
const chunk = 256

// Float32 maps a word to [0, 1): its top 24 bits, which a float32 holds exactly,
// times 2^-24.
func Float32(word uint32) float32 { return float32(word>>8) * 0x1p-24 }

// FillUniform sets dst[j] to Float32(word start+j): uniform in [0, 1).
func (s Stream) FillUniform(dst []float32, start uint64) {
	var words [chunk]uint32
	for len(dst) > 0 {
		w := words[:min(chunk, len(dst))]
		s.FillUint32(w, start)
		d := dst[:len(w)]
		for j, word := range w {
			d[j] = Float32(word)
		}
		dst, start = dst[len(w):], start+uint64(len(w))
	}
}

// FillBernoulli sets dst[j] to value where element start+j is kept, else to 0.
// An element is kept with probability keep (rounded up to a multiple of 2^-24):
// where its uniform is below keep. A keep of 1 or more keeps all, one of 0 or
// less (or NaN) none. Inverted dropout is keep = 1-p, value = 1/(1-p).
func (s Stream) FillBernoulli(dst []float32, start uint64, keep, value float32) {
	var (
		words [chunk]uint32
		limit = bernoulliLimit(keep)
		bits  = math.Float32bits(value)
	)
	for len(dst) > 0 {
		w := words[:min(chunk, len(dst))]
		s.FillUint32(w, start)
		d := dst[:len(w)]
		for j, word := range w {
			// Both terms are at most 2^24, so the sign of the difference says
			// which is smaller; spread over the word it masks value without a
			// branch, which random data would mispredict half the time.
			kept := uint32(int32(word>>8-limit) >> 31)
			d[j] = math.Float32frombits(bits & kept)
		}
		dst, start = dst[len(w):], start+uint64(len(w))
	}
}

// bernoulliLimit gives the number n in 0..2^24 with u < keep exactly when the
// top 24 bits of u's word are < n.
func bernoulliLimit(keep float32) uint32 {
	switch {
	case keep >= 1:
		return 1 << 24
	case keep > 0:
		return uint32(math.Ceil(float64(keep) * (1 << 24)))
	}
	return 0
}

// FillNormal sets dst[j] to element start+j of the stream's standard normals.
// Elements 2p and 2p+1 come from words 2p and 2p+1 by Box-Muller's transform.
func (s Stream) FillNormal(dst []float32, start uint64) {
	if start%2 == 1 && len(dst) > 0 {
		var pair [2]uint32
		s.FillUint32(pair[:], start-1)
		_, dst[0] = boxMuller(pair[0], pair[1])
		dst, start = dst[1:], start+1
	}
	var words [chunk]uint32
	for len(dst) > 0 {
		n := min(chunk, len(dst))
		w := words[:(n+1)&^1] // whole pairs
		s.FillUint32(w, start)
		for j := 0; j < n; j += 2 {
			z0, z1 := boxMuller(w[j], w[j+1])
			dst[j] = z0
			if j+1 < n {
				dst[j+1] = z1
			}
		}
		dst, start = dst[n:], start+uint64(n)
	}
}

// boxMuller turns two words into two independent standard normals. The radius'
// uniform is in (0, 1], so its logarithm is finite: |z| is at most
// sqrt(64 ln 2) = 6.66.
func boxMuller(a, b uint32) (z0, z1 float32) {
	r := math.Sqrt(-2 * math.Log((float64(a)+1)*0x1p-32))
	sin, cos := math.Sincos(2 * math.Pi * 0x1p-32 * float64(b))
	return float32(r * cos), float32(r * sin)
}
