package host_test

import (
	"fmt"
	"testing"

	"github.com/tandem-train/tandem/internal/host"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/backendtest"
)

func TestConformance(t *testing.T) {
	for _, threads := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d threads", threads), func(t *testing.T) {
			if threads == 1 && testing.Short() {
				t.Skip("one thread has nobody to race with")
			}
			backendtest.Run(t, func(*testing.T) ir.Device { return host.Open(threads) }, backendtest.NoAllocs())
		})
	}
}
