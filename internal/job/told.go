package job

import (
	"context"
	"sync/atomic"
)

var told atomic.Pointer[context.Context]

// SetTold says which context ends when this process is told to end. It is for the launcher, where that takes the process's signals.
func SetTold(ctx context.Context) { told.Store(&ctx) }

// Told is that context, or one that does not end.
func Told() context.Context {
	if ctx := told.Load(); ctx != nil {
		return *ctx
	}
	return context.Background()
}
