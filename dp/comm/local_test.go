package comm_test

import (
	"testing"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/dp/comm/commtest"
)

func open(t *testing.T, world int) []comm.Comm {
	t.Helper()
	group, err := comm.NewLocal(world)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range group {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return group
}

func TestLocal(t *testing.T) { commtest.Run(t, open) }
