//go:build !race

// What runs here is C, which the race detector does not see.

package cudaops_test

import (
	"os"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/backendtest"
)

// TestKernels runs programs on a card whose driver and compiler are fakes: slow, but on machines without a card it is what sees that kernels,
// their arguments and the order of tasks in graphs are right.
func TestKernels(t *testing.T) {
	config := fakecuda.Config{Cards: []int64{4096}, Kernels: true}
	if os.Getenv("TANDEM_TEST_LONG") == "" {
		config.Subtests = "^(op|channels_last|program|ranks|fault|memory)$"
	}
	if !fakecuda.In(t, config) {
		return
	}
	backendtest.Run(t, func(t *testing.T) ir.Device {
		dev, err := cudaops.Open(0, 1)
		if err != nil {
			t.Fatal(err)
		}
		return dev
	})
}
