package launcher

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// againKey is the key of a context's channel that a second signal closes.
type againKey struct{}

// oneSignal is how soon after a signal another is taken for the same one: what sends a signal to a process and to its group, as
// timeout does, sends it twice.
const oneSignal = 100 * time.Millisecond

// Interrupt gives a context for [Run] that ends at the first of the signals, with a [*SignalError] as its cause: Run then passes the
// signal on to all workers. At a second signal it kills them at once. Without signals it takes INT, TERM, HUP and QUIT. A signal that
// this process ignores, as HUP under nohup, stays ignored. The function that comes with it ends the context and gives the signals back.
func Interrupt(parent context.Context, signals ...os.Signal) (context.Context, context.CancelFunc) {
	if len(signals) == 0 {
		signals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}
	}
	again := make(chan struct{})
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, againKey{}, again))
	arrived := make(chan os.Signal, 1)
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(arrived, sig)
		}
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var first time.Time
		for {
			select {
			case sig := <-arrived:
				if first.IsZero() {
					first = time.Now()
					number, _ := sig.(syscall.Signal) // every os.Signal of this platform is one
					cancel(&SignalError{Signal: number})
				} else if time.Since(first) > oneSignal {
					close(again)
					return
				}
			case <-stopped:
				return
			}
		}
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(arrived)
		close(stopped)
		<-done
		cancel(context.Canceled)
	})
}
