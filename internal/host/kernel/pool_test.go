package kernel

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestPoolRunsEveryPartOnce(t *testing.T) {
	for threads := 1; threads <= 5; threads++ {
		p := NewPool(threads)
		for _, parts := range []int{0, 1, 2, 3, 7, 100} {
			counts := make([]atomic.Int32, parts)
			busy := make([]atomic.Bool, threads)
			p.Run(parts, func(worker, part int) {
				if !busy[worker].CompareAndSwap(false, true) {
					t.Errorf("worker %d runs two parts at once", worker)
				}
				counts[part].Add(1)
				busy[worker].Store(false)
			})
			for i := range counts {
				if n := counts[i].Load(); n != 1 {
					t.Errorf("%d threads: part %d of %d ran %d times", threads, i, parts, n)
				}
			}
		}
		p.Close()
		p.Close()
	}
}

// Many short runs, in several pools at once: a lost wake-up or a late worker would hang or corrupt the sums.
func TestPoolsSideBySide(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			p := NewPool(3)
			defer p.Close()
			sums := make([]int, 16)
			body := func(_, part int) { sums[part]++ }
			for i := 1; i <= 2000; i++ {
				p.Run(1+i%16, body)
			}
			total := 0
			for _, s := range sums {
				total += s
			}
			if want := 2000 / 16 * 136; total != want {
				t.Errorf("%d parts ran, want %d", total, want)
			}
		})
	}
	wg.Wait()
}

func TestPoolAllocatesNothing(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	body := func(_, _ int) {}
	noAllocs(t, func() { p.Run(8, body) })
}

func TestPoolRefusesNesting(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	caught := make(chan any, 2)
	p.Run(2, func(_, _ int) {
		defer func() { caught <- recover() }()
		p.Run(2, func(_, _ int) {})
	})
	if a, b := <-caught, <-caught; a == nil || b == nil {
		t.Error("a Run within a Run was not refused")
	}
}

func BenchmarkPoolRun(b *testing.B) {
	p := NewPool(2)
	defer p.Close()
	body := func(_, _ int) {}
	for b.Loop() {
		p.Run(2, body)
	}
}
