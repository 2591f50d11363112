//go:build !race && (linux || darwin)

package cudaops

import (
	"errors"
	"math"
	"testing"
)

func TestSimHostHasNoRoom(t *testing.T) {
	// More than an address space: the host refuses, the card does not.
	d := newSim(t, "1MiB")
	d.visible[0].info.props.TotalMemory = math.MaxInt64
	if _, err := d.malloc(0, 1<<60); err == nil || errors.Is(err, errCardFull) {
		t.Errorf("error %v, want the host's", err)
	}
	if free, _, _ := d.memInfo(0); free != math.MaxInt64 {
		t.Errorf("a refused request counts: %d free", free)
	}
}
