//go:build !race

// What runs here is C, which the race detector does not see.

package exec_test

import (
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cublas"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
)

func TestMain(m *testing.M) { fakecuda.Main(m) }

// onFake runs a test on a card whose driver and compiler are fakes, which run the graph's tasks in any order that the graph allows. Where cuBLASLt is installed, it
// can't: that needs a real driver, and the test that has the name sister is for such machines.
func onFake(t *testing.T, sister string, test func(t *testing.T)) {
	if _, err := cublas.Open(); err == nil {
		t.Skipf("cuBLASLt is installed, which can't work with a fake driver; %s is for such machines", sister)
	}
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Kernels: true, Env: map[string]string{"FAKE_CUDA_MAJOR": "9"}}) {
		test(t)
	}
}

// TestWaysOnHost: the kernels for tensor cores give the right numbers.
func TestWaysOnHost(t *testing.T) { onFake(t, "TestWays", exec.WaysOfMatrices) }

// TestMaskedGradientOnHost: so do copies along k that apply a mask, and parts of k.
func TestMaskedGradientOnHost(t *testing.T) { onFake(t, "TestMaskedGradient", exec.MaskedGradient) }

// TestStoredSumsOnHost: so do loops that store what they sum up.
func TestStoredSumsOnHost(t *testing.T) { onFake(t, "TestStoredSums", exec.StoredSums) }

// TestUpdateInPartsOnHost: so do updates in parts.
func TestUpdateInPartsOnHost(t *testing.T) { onFake(t, "TestUpdateInParts", exec.UpdateInParts) }

// TestPreludesTogetherOnHost: a compiler takes all preludes at once.
func TestPreludesTogetherOnHost(t *testing.T) {
	onFake(t, "TestPreludesTogether", exec.PreludesTogether)
}
