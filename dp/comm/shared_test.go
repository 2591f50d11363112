package comm_test

import (
	"testing"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/dp/comm/commtest"
)

// openShared makes a group whose ranks share memory, closed when the test ends.
func openShared(t *testing.T, world int) []comm.Comm {
	t.Helper()
	group := comm.NewShared(t, world)
	t.Cleanup(func() {
		for _, c := range group {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return group
}

func TestShared(t *testing.T) { commtest.RunRemote(t, openShared) }
