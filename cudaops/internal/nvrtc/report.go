package nvrtc

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// report says how far compiling has come, when it takes long enough to be taken for a program that hangs.
type report struct {
	out   io.Writer
	after time.Duration // and again each time

	mu      sync.Mutex
	pending map[string]bool // sources; whether they are compiled
	calls   int             // of expect that have not ended
	stop    chan struct{}
}

// said is the process's.
var said = &report{out: os.Stderr, after: time.Second}

// expect counts sources that are about to be compiled, each once, whoever waits for it. The function that it returns ends the call.
func (r *report) expect(sources []string) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls++; r.calls == 1 {
		r.pending, r.stop = map[string]bool{}, make(chan struct{})
		go r.watch(r.stop)
	}
	for _, s := range sources {
		if _, known := r.pending[s]; !known {
			r.pending[s] = false
		}
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls--; r.calls == 0 {
			close(r.stop)
		}
	}
}

func (r *report) done(source string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[source] = true
}

// watch writes lines until stop.
func (r *report) watch(stop chan struct{}) {
	tick := time.NewTicker(r.after)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			r.say()
		}
	}
}

func (r *report) say() {
	r.mu.Lock()
	defer r.mu.Unlock()
	done := 0
	for _, compiled := range r.pending {
		if compiled {
			done++
		}
	}
	fmt.Fprintf(r.out, "tandem: compiling kernels: %d of %d\n", done, len(r.pending))
}
