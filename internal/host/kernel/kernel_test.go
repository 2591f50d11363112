package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRand returns a source that differs from run to run; a failing test logs its seed.
func newRand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// normals returns n standard normal numbers.
func normals(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// poison returns n NaNs, which show wherever a kernel forgot to write or read what it should not.
func poison(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// poisonScratch fills a pool's scratch with NaN.
func poisonScratch(p *Pool) {
	for _, s := range p.scratch {
		copy(s, poison(len(s)))
	}
	copy(p.shared, poison(len(p.shared)))
}

// sameBits reports whether two slices hold the same bits.
func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// forPools runs f as a subtest for every level and 1, 2 and 3 threads, and checks that the results of one level are
// the same bits. f must draw the same random numbers each time.
func forPools(t *testing.T, f func(t *testing.T, p *Pool, r *rand.Rand) []float32) {
	seed := newRand(t).Uint64()
	for _, l := range Levels() {
		var first []float32
		for threads := 1; threads <= 3; threads++ {
			t.Run(fmt.Sprintf("%v/%d", l, threads), func(t *testing.T) {
				p := NewPoolLevel(threads, l)
				defer p.Close()
				got := f(t, p, rand.New(rand.NewPCG(seed, 1)))
				if threads == 1 {
					first = got
				} else if !sameBits(first, got) {
					t.Errorf("%d threads give other bits than one", threads)
				}
			})
		}
	}
}

// noAllocs checks that f allocates nothing.
func noAllocs(t *testing.T, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(10, f); n != 0 {
		t.Errorf("%v allocations a run, want none", n)
	}
}

// threadCounts returns 1, 2, 4, ... up to the number of processors.
func threadCounts() []int {
	var all []int
	for n := 1; n <= runtime.GOMAXPROCS(0); n *= 2 {
		all = append(all, n)
	}
	return all
}

// manyShapes is for tests that take long under the race detector, for which short ones are. The suite of backends races through the same code.
func manyShapes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("many shapes")
	}
}
