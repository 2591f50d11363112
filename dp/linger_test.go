package dp

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestLingerAfterLong: a call whose context ended long ago still has the time to say so to the other ranks.
func TestLingerAfterLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var l linger
		defer l.stop()
		first := l.after(ctx)
		cancel()
		<-first.Done() // which never comes, and is an error, where the context has no end
		if err := l.after(ctx).Err(); err != nil {
			t.Errorf("the second call's context has ended at once: %v", err)
		}
	})
}
