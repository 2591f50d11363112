package dp

import (
	"context"
	"time"
)

// lingering is how long ranks go on after a context has ended, so that they can end a step together.
const lingering = 10 * time.Second

// linger makes, of the contexts of calls, contexts that end later. It remembers the last one, since most calls have the same.
type linger struct {
	from   <-chan struct{} // closed when the call's ends: contexts of any type can't be compared
	to     context.Context
	end    context.CancelFunc
	forget func() bool
}

// after returns a context that ends some time after ctx has.
func (l *linger) after(ctx context.Context) context.Context {
	from := ctx.Done()
	switch {
	case from == nil:
		return ctx
	case from == l.from && l.to.Err() == nil:
		return l.to
	}
	l.stop()
	to, end := context.WithCancel(context.WithoutCancel(ctx))
	l.from, l.to, l.end = from, to, end
	l.forget = context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(lingering, end)
		context.AfterFunc(to, func() { timer.Stop() })
	})
	return to
}

// stop forgets the context.
func (l *linger) stop() {
	if l.end != nil {
		l.forget()
		l.end()
		*l = linger{}
	}
}
