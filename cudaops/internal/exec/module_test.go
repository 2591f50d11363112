package exec

import (
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
)

// TestPreludesTogether: all preludes can be in one source, since any program may need them, on a card as on the fake one.
func TestPreludesTogether(t *testing.T) {
	openCard(t)
	preludesTogether(t)
}

func preludesTogether(t *testing.T) {
	all := unit{uses: map[string]bool{}}
	for _, p := range preludes {
		all.uses[p] = true
	}
	source := new(module).source(all) + "extern \"C\" __global__ void nothing() {}\n"
	if _, err := nvrtc.Compile(source, "sm_90"); err != nil {
		t.Error(err)
	}
}
