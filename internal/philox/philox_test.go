package philox

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The known answers of the Random123 distribution (tests/kat_vectors, lines
// "philox4x32 10"): counter, key, result.
func TestBlockKnownAnswers(t *testing.T) {
	tests := []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{
			[4]uint32{}, [2]uint32{},
			[4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	}
	for _, tt := range tests {
		if got := Block(tt.key, tt.ctr); got != tt.want {
			t.Errorf("Block(%x, %x) = %x, want %x", tt.key, tt.ctr, got, tt.want)
		}
	}
}

// The documented mapping: the third known answer, reached through a Stream.
func TestStreamMapping(t *testing.T) {
	s := New(0x299f31d0a4093822, 0x0370734413198a2e)
	want := [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}
	// Words have 64-bit numbers, so blocks have 62: the known answer's block
	// number is beyond that and is reached below Uint32At.
	if got := s.block(0x85a308d3243f6a88); got != want {
		t.Errorf("block = %x, want %x", got, want)
	}
	for _, i := range []uint64{0, 1, 2, 3, 4, 1<<34 + 3, math.MaxUint64} {
		n := i / 4
		b := Block([2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{uint32(n), uint32(n >> 32), 0x13198a2e, 0x03707344})
		if got := s.Uint32At(i); got != b[i%4] {
			t.Errorf("word %d = %x, want %x", i, got, b[i%4])
		}
	}
}

// Whatever the chunks and where they start, every filler gives element i the
// same bits.
func TestFillersIgnoreChunking(t *testing.T) {
	const n = 3 * chunk
	s := New(42, 7)
	fillers := map[string]func([]float32, uint64){
		"uniform":   s.FillUniform,
		"normal":    s.FillNormal,
		"bernoulli": func(d []float32, at uint64) { s.FillBernoulli(d, at, 0.5, 2) },
		"words": func(d []float32, at uint64) {
			w := make([]uint32, len(d))
			s.FillUint32(w, at)
			for i := range w {
				d[i] = math.Float32frombits(w[i])
			}
		},
	}
	bitsOf := func(f []float32) []uint32 {
		b := make([]uint32, len(f))
		for i := range f {
			b[i] = math.Float32bits(f[i])
		}
		return b
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for name, fill := range fillers {
		for _, base := range []uint64{0, 1, 1<<34 - 5, math.MaxUint64 - n/2} { // counter carry, wrap
			want := make([]float32, n)
			for i := range want {
				fill(want[i:i+1], base+uint64(i))
			}
			for range 20 {
				got := make([]float32, n)
				for at := 0; at < n; {
					size := min(rng.IntN(2*chunk), n-at)
					fill(got[at:at+size], base+uint64(at))
					at += size
				}
				if !slices.Equal(bitsOf(got), bitsOf(want)) {
					t.Fatalf("%s from %d: the bits depend on the chunks", name, base)
				}
			}
		}
	}
}

func TestWordsMatchUint32At(t *testing.T) {
	s := New(3, 5)
	w := make([]uint32, 37)
	s.FillUint32(w, 6)
	for i := range w {
		if want := s.Uint32At(6 + uint64(i)); w[i] != want {
			t.Fatalf("word %d = %x, want %x", i, w[i], want)
		}
	}
	u := make([]float32, 37)
	s.FillUniform(u, 6)
	for i := range u {
		if want := float32(float64(w[i]>>8) / (1 << 24)); u[i] != want {
			t.Fatalf("uniform %d = %v, want %v", i, u[i], want)
		}
	}
}

func TestStreamsDiffer(t *testing.T) {
	seen := map[uint32]Stream{}
	for _, s := range []Stream{New(0, 0), New(1, 0), New(0, 1), New(1<<32, 0), New(0, 1<<32)} {
		w := s.Uint32At(0)
		if other, dup := seen[w]; dup {
			t.Errorf("%+v and %+v begin with the same word", s, other)
		}
		seen[w] = s
	}
}

func TestFloat32Range(t *testing.T) {
	if got := Float32(0); got != 0 {
		t.Errorf("Float32(0) = %v", got)
	}
	if got := Float32(math.MaxUint32); got >= 1 || got != 1-0x1p-24 {
		t.Errorf("Float32(max) = %v, want 1-2^-24", got)
	}
}

// A mask is where uniforms are below keep, for keeps on and between the steps of 2^-24.
func TestBernoulliIsUniformBelowKeep(t *testing.T) {
	s := New(9, 1)
	const n = 4096
	u, b := make([]float32, n), make([]float32, n)
	s.FillUniform(u, 3)
	nan := float32(math.NaN())
	for _, keep := range []float32{-1, 0, 1e-30, 0.1, 0.5, u[17], math.Nextafter32(u[17], 1), 0.9, 1 - 0x1p-24, 1, 2, nan} {
		s.FillBernoulli(b, 3, keep, 1.25)
		for i := range b {
			var want float32
			if u[i] < keep {
				want = 1.25
			}
			if b[i] != want {
				t.Fatalf("keep %v: element %d with uniform %v = %v, want %v", keep, i, u[i], b[i], want)
			}
		}
	}
}

// Moments within five standard errors. The numbers are fixed, so this can't flicker.
func TestMoments(t *testing.T) {
	const n = 1 << 18
	x := make([]float32, n)
	moments := func() (mean, variance, fourth float64) {
		for _, v := range x {
			mean += float64(v) / n
		}
		for _, v := range x {
			d := float64(v) - mean
			variance += d * d / n
			fourth += d * d * d * d / n
		}
		return
	}
	near := func(what string, got, want, sd float64) {
		t.Helper()
		if math.Abs(got-want) > 5*sd/math.Sqrt(n) {
			t.Errorf("%s = %v, want %v", what, got, want)
		}
	}
	s := New(1, 1)
	s.FillUniform(x, 0)
	m, v, _ := moments()
	near("uniform mean", m, 0.5, math.Sqrt(1./12))
	near("uniform variance", v, 1./12, math.Sqrt(1./180))
	s.FillNormal(x, 0)
	m, v, f := moments()
	near("normal mean", m, 0, 1)
	near("normal variance", v, 1, math.Sqrt(2))
	near("normal fourth moment", f, 3, math.Sqrt(96))
	var lag float64
	for i := 0; i < n; i += 2 {
		lag += float64(x[i]) * float64(x[i+1]) / (n / 2)
	}
	near("correlation within pairs", lag, 0, math.Sqrt2)
	s.FillBernoulli(x, 0, 0.7, 1)
	m, _, _ = moments()
	near("share kept", m, 0.7, math.Sqrt(0.21))
}

func TestNormalExtremesAreFinite(t *testing.T) {
	for _, a := range []uint32{0, math.MaxUint32} {
		for _, b := range []uint32{0, math.MaxUint32} {
			z0, z1 := boxMuller(a, b)
			for _, z := range []float32{z0, z1} {
				if r := math.Abs(float64(z)); !(r <= 6.67) {
					t.Errorf("boxMuller(%x, %x) = %v, %v", a, b, z0, z1)
				}
			}
		}
	}
}

func TestPerm(t *testing.T) {
	for _, n := range []int{0, 1, 2, 10, 1000} {
		p := Perm(5, 0, n)
		if !slices.Equal(p, Perm(5, 0, n)) {
			t.Errorf("Perm of %d is not repeatable", n)
		}
		sorted := slices.Clone(p)
		slices.Sort(sorted)
		for i, v := range sorted {
			if i != v {
				t.Fatalf("Perm of %d is no permutation: %v", n, p)
			}
		}
	}
	if slices.Equal(Perm(5, 0, 100), Perm(5, 1, 100)) || slices.Equal(Perm(5, 0, 100), Perm(6, 0, 100)) {
		t.Error("seed or stream does not matter")
	}
}

// All 24 permutations of four, equally often: chi squared with 23 degrees of
// freedom is above 49.7 once in a thousand times. The numbers are fixed.
func TestPermIsUnbiased(t *testing.T) {
	const trials = 24000
	count := map[[4]int]float64{}
	for i := range uint64(trials) {
		count[[4]int(Perm(11, i, 4))]++
	}
	if len(count) != 24 {
		t.Fatalf("%d different permutations of 4, want 24", len(count))
	}
	var chi2 float64
	for _, c := range count {
		chi2 += (c - trials/24) * (c - trials/24) / (trials / 24)
	}
	if chi2 > 49.7 {
		t.Errorf("chi squared = %v over the permutations of 4", chi2)
	}
}

// With n above 2^63 about half of all draws are rejected; none may be out of range.
func TestBelowRejects(t *testing.T) {
	const n = 1<<63 + 1
	r := wordReader{stream: New(2, 2)}
	for range 100 {
		if v := r.below(n); v >= n {
			t.Fatalf("below(%d) = %d", uint64(n), v)
		}
	}
	if r.next < 2*120 {
		t.Errorf("100 draws took %d words: nothing was rejected", r.next)
	}
}

func TestFillersDoNotAllocate(t *testing.T) {
	s := New(1, 1)
	dst := make([]float32, 1000)
	if a := testing.AllocsPerRun(10, func() {
		s.FillUniform(dst, 1)
		s.FillNormal(dst, 1)
		s.FillBernoulli(dst, 1, 0.5, 2)
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

func BenchmarkFill(b *testing.B) {
	s := New(1, 1)
	dst := make([]float32, 1<<16)
	words := make([]uint32, 1<<16)
	for name, fill := range map[string]func(){
		"words":     func() { s.FillUint32(words, 0) },
		"uniform":   func() { s.FillUniform(dst, 0) },
		"normal":    func() { s.FillNormal(dst, 0) },
		"bernoulli": func() { s.FillBernoulli(dst, 0, 0.5, 2) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(4 * int64(len(dst)))
			for b.Loop() {
				fill()
			}
		})
	}
}
