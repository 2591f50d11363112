//go:build !race && (linux || darwin)

package cudaops_test

import (
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

// Cards of any size cost the host nothing until they are used.
func TestUnusedMemoryIsFree(t *testing.T) {
	cudaopstest.Setup(t, "8x100GiB", "")
	for device := range 8 {
		m := alloc(t, device, 60<<30)
		if err := m.Write(m.Len()-4, []byte("last")); err != nil {
			t.Fatal(err)
		}
		free(t, m)
	}
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
}
