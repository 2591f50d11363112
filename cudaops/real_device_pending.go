//go:build !cudaexec

package cudaops

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
)

func openReal(c *card, _ *realCard) (ir.Device, error) {
	return nil, fmt.Errorf("cudaops: open %s: programs run on simulated cards only so far", String(c.logical))
}
