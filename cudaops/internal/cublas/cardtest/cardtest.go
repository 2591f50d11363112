// Package cardtest is what tests of libraries need of a real card: a [Bench] with memory, numbers in it, and captured graphs. Without a card
// the test is skipped.
package cardtest

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// Bench is a card in use by one test, whose goroutine is locked to its thread. What a Bench gives out it takes back when the test ends.
type Bench struct {
	testing.TB
	Card *cuda.Card
}

// Open opens the first card, and skips the test where there is none.
func Open(t testing.TB) *Bench {
	t.Helper()
	api, err := cuda.Load()
	if err != nil {
		t.Skipf("no card: %v", err)
	}
	card, err := api.OpenCard(0)
	Must(t, err)
	t.Cleanup(func() { Must(t, card.Close()) })
	return (&Bench{Card: card}).For(t)
}

// For is the bench for a subtest, which runs on another thread.
func (b *Bench) For(t testing.TB) *Bench {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	Must(t, b.Card.CtxSetCurrent(b.Card.Ctx))
	return &Bench{TB: t, Card: b.Card}
}

// Must ends the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Alloc takes bytes of the card's memory.
func (b *Bench) Alloc(bytes int) cuda.Ptr {
	b.Helper()
	p, err := b.Card.MemAlloc(int64(max(bytes, 1)))
	Must(b, err)
	b.Cleanup(func() { Must(b, b.Card.MemFree(p)) })
	return p
}

// New takes memory for numbers, off elements into it, and puts them there.
func (b *Bench) New(x []float32, off int) cuda.Ptr {
	b.Helper()
	p := b.Alloc(4*(len(x)+off)) + cuda.Ptr(4*off)
	b.Put(p, x)
	return p
}

// Put writes numbers to the card, after the work in its stream.
func (b *Bench) Put(p cuda.Ptr, x []float32) {
	b.Helper()
	h, err := b.Card.MemHostAlloc(4 * len(x))
	Must(b, err)
	copy(floats(h), x)
	Must(b, errors.Join(b.Card.MemcpyHtoD(p, h, 0, 4*len(x), b.Card.Stream), b.Card.StreamSynchronize(b.Card.Stream), b.Card.MemFreeHost(h)))
}

// Get reads n numbers from the card, after the work in its stream.
func (b *Bench) Get(p cuda.Ptr, n int) []float32 {
	b.Helper()
	h, err := b.Card.MemHostAlloc(4 * n)
	Must(b, err)
	Must(b, errors.Join(b.Card.MemcpyDtoH(h, 0, p, 4*n, b.Card.Stream), b.Card.StreamSynchronize(b.Card.Stream)))
	x := append([]float32(nil), floats(h)...)
	Must(b, b.Card.MemFreeHost(h))
	return x
}

func floats(h cuda.Pinned) []float32 {
	raw := h.Bytes()
	return unsafe.Slice((*float32)(unsafe.Pointer(&raw[0])), len(raw)/4)
}

// Same ends the test unless n numbers on the card have these bits.
func (b *Bench) Same(what any, p cuda.Ptr, want []float32) {
	b.Helper()
	for i, x := range b.Get(p, len(want)) {
		if math.Float32bits(x) != math.Float32bits(want[i]) {
			b.Fatalf("%v: element %d is %v, then %v", what, i, want[i], x)
		}
	}
}

// Capture makes a graph of what run puts into a stream of its own, and returns how to launch it into the card's.
func (b *Bench) Capture(run func(s cuda.Stream)) (launch func()) {
	b.Helper()
	s, err := b.Card.StreamCreate()
	Must(b, err)
	b.Cleanup(func() { Must(b, b.Card.StreamDestroy(s)) })
	exec, err := b.Card.Capture(s, func() error { run(s); return nil })
	Must(b, err)
	b.Cleanup(func() { Must(b, errors.Join(b.Card.StreamSynchronize(b.Card.Stream), b.Card.GraphExecDestroy(exec))) })
	return func() {
		b.Helper()
		Must(b, b.Card.GraphLaunch(exec, b.Card.Stream))
	}
}

// Rates returns how many 1e12 operations a second the card does in each of the runs, which are timed in turn, because its clock changes while it
// is busy; the fastest of some times counts. time is how many milliseconds a run takes.
func (b *Bench) Rates(operations float64, time func(run func() error) (float64, error), runs ...func() error) []float64 {
	b.Helper()
	rates := make([]float64, len(runs))
	for range 3 {
		for i, run := range runs {
			ms, err := time(run)
			Must(b, err)
			rates[i] = max(rates[i], operations/ms/1e9)
		}
	}
	return rates
}

// Random are numbers between -1 and 1.
func Random(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = rand.Float32()*2 - 1
	}
	return x
}

// Poison are numbers that no result may keep.
func Poison(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// Half is the bits of a number that the type holds exactly, or of NaN.
func Half(t ir.DType, x float32) uint32 {
	bits := math.Float32bits(x)
	switch {
	case t == ir.BF16 || x == 0:
		return bits >> 16
	case x != x:
		return 0x7e00
	}
	return bits>>16&0x8000 | (bits>>23&0xff-112)<<10 | bits>>13&0x3ff
}
