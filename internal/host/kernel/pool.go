package kernel

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Pool is a fixed set of worker goroutines that share out the parts of a loop, with scratch memory for each.
//
// A pool belongs to one goroutine at a time, and so do the plans made for it. The calling goroutine is worker 0 and does
// its share, so a pool of one thread starts no goroutine. A worker that the scheduler wakes late delays nobody: the
// others take its parts.
type Pool struct {
	kern    *kernels
	threads int
	wake    []chan struct{} // of workers 1.., room for one token each
	stopped sync.WaitGroup
	closed  bool

	running atomic.Bool
	body    func(worker, part int)
	parts   int
	// unclaimed counts down as parts are taken; it may fall below 0. Only who has claimed a part may read body and
	// parts: they cannot change before that part is done.
	unclaimed atomic.Int64
	undone    atomic.Int64
	done      chan struct{}

	scratch [][]float32 // one of the same length per worker
	shared  []float32
}

// NewPool returns a pool of that many threads, at least 1, at the best level. Close it when it is no longer needed.
func NewPool(threads int) *Pool { return NewPoolLevel(threads, Best()) }

// NewPoolLevel is NewPool at a given level, which the CPU must have.
func NewPoolLevel(threads int, level Level) *Pool {
	if threads < 1 {
		panic(fmt.Sprintf("kernel: NewPool(%d): a pool has at least one thread", threads))
	}
	p := &Pool{kern: levelKernels(level), threads: threads, done: make(chan struct{}, 1), scratch: make([][]float32, threads)}
	for w := 1; w < threads; w++ {
		wake := make(chan struct{}, 1)
		p.wake = append(p.wake, wake)
		p.stopped.Go(func() { p.serve(w, wake) })
	}
	return p
}

// Threads returns the number of threads, the caller's included.
func (p *Pool) Threads() int { return p.threads }

// Level returns the level that the pool's plans use.
func (p *Pool) Level() Level { return p.kern.level }

// Vector returns the elementwise kernels of the pool's level.
func (p *Pool) Vector() *Vector { return p.kern.vector }

// ScratchBytes returns the size of the scratch memory that the plans made so far have reserved.
func (p *Pool) ScratchBytes() int { return 4 * (p.threads*len(p.scratch[0]) + len(p.shared)) }

// Close ends the workers and waits until they are gone. Closing twice is harmless.
func (p *Pool) Close() {
	if p.closed {
		return
	}
	p.closed = true
	for _, w := range p.wake {
		close(w)
	}
	p.stopped.Wait()
}

// reserve makes sure that every worker has perWorker floats of scratch and that shared are there for all.
func (p *Pool) reserve(perWorker, shared int) {
	if p.running.Load() {
		panic("kernel: a plan is made while its pool runs")
	}
	if perWorker > len(p.scratch[0]) {
		for w := range p.scratch {
			p.scratch[w] = make([]float32, perWorker)
		}
	}
	if shared > len(p.shared) {
		p.shared = make([]float32, shared)
	}
}

// Run calls body(worker, part) for every part in 0..parts-1 and returns when all are done. Calls of different workers,
// 0..Threads()-1, run at the same time, those of one worker one after the other. Which worker gets which part is not
// determined, so the result of a part must not depend on it. body must not call Run.
//
// Run itself allocates nothing; a closure does when it is made, so make body once.
func (p *Pool) Run(parts int, body func(worker, part int)) {
	if p.threads == 1 || parts <= 1 {
		for i := range parts {
			body(0, i)
		}
		return
	}
	if p.closed {
		panic("kernel: Run on a closed pool")
	}
	if !p.running.CompareAndSwap(false, true) {
		panic("kernel: Pool.Run is called while it runs")
	}
	p.body, p.parts = body, parts
	p.undone.Store(int64(parts))
	p.unclaimed.Store(int64(parts))
	for _, w := range p.wake[:min(parts, p.threads)-1] {
		select {
		case w <- struct{}{}:
		default: // an old token is still there and will wake it
		}
	}
	if !p.work(0) {
		p.awaitDone()
	}
	p.body = nil
	p.running.Store(false)
}

// work takes parts until none is left, and reports whether it finished the last one.
func (p *Pool) work(worker int) (last bool) {
	for p.unclaimed.Load() > 0 {
		left := p.unclaimed.Add(-1)
		if left < 0 {
			break
		}
		p.body(worker, p.parts-1-int(left))
		last = p.undone.Add(-1) == 0
	}
	return last
}

// Waking a sleeping thread takes 5 to 50 microseconds, so whoever has nothing to do first looks around for about as
// long: rounds times, letting other goroutines run after each, for looks atomic loads.
const (
	rounds = 20
	looks  = 1000
)

// serve is a worker goroutine's life.
func (p *Pool) serve(worker int, wake <-chan struct{}) {
	for range wake {
		for p.awaitParts() {
			if p.work(worker) {
				p.done <- struct{}{}
			}
		}
	}
}

// awaitParts looks around for parts to do.
func (p *Pool) awaitParts() bool {
	for range rounds {
		for range looks {
			if p.unclaimed.Load() > 0 {
				return true
			}
		}
		runtime.Gosched()
	}
	return false
}

// awaitDone looks around for the end of the other workers' parts, and sleeps if it does not come soon.
func (p *Pool) awaitDone() {
	for range rounds {
		for range looks {
			if p.undone.Load() == 0 {
				<-p.done
				return
			}
		}
		runtime.Gosched()
	}
	<-p.done
}
