package launcher

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
)

// console is where the output of all workers comes together: one lock for both writers, which may be the same terminal, and whole
// lines in every write, so that no line cuts another.
type console struct {
	mu     sync.Mutex
	logger *slog.Logger
	left   atomic.Bool // nobody waits for it any more
}

// outlet is one of the console's writers.
type outlet struct {
	console *console
	name    string
	to      io.Writer
	broken  bool // under the console's lock
}

// write prints whole lines. A console that is gone is no reason to stop workers, nor to let them wait: what they print is dropped.
func (o *outlet) write(lines []byte) {
	if len(lines) == 0 || o.console.left.Load() {
		return
	}
	o.console.mu.Lock()
	defer o.console.mu.Unlock()
	if o.broken {
		return
	}
	if _, err := o.to.Write(lines); err != nil {
		o.broken = true
		o.console.logger.Warn("what workers print can't be written, and is lost from here", "stream", o.name, "error", err)
	}
}
