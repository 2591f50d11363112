package dp

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestLingerAfterLong: a call whose context ended long ago still has the time to say so to the other ranks.
func TestLingerAfterLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var l linger
		defer l.stop()
		first := l.after(ctx)
		cancel()
		time.Sleep(2 * lingering)
		synctest.Wait()
		if first.Err() == nil {
			t.Error("the first call's context has no end")
		}
		if err := l.after(ctx).Err(); err != nil {
			t.Errorf("the second call's context has ended at once: %v", err)
		}
	})
}
