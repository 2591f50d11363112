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

// TestWaysOnHost: the kernels for tensor cores give the right numbers on a card whose driver and compiler are fakes.
func TestWaysOnHost(t *testing.T) {
	if _, err := cublas.Open(); err == nil {
		t.Skip("cuBLASLt is installed, which can't work with a fake driver; TestWays is for such machines")
	}
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Kernels: true, Env: map[string]string{"FAKE_CUDA_MAJOR": "9"}}) {
		exec.WaysOfMatrices(t)
	}
}

// TestMaskedGradientOnHost: so do copies along k that apply a mask, and parts of k.
func TestMaskedGradientOnHost(t *testing.T) {
	if _, err := cublas.Open(); err == nil {
		t.Skip("cuBLASLt is installed, which can't work with a fake driver; TestMaskedGradient is for such machines")
	}
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Kernels: true, Env: map[string]string{"FAKE_CUDA_MAJOR": "9"}}) {
		exec.MaskedGradient(t)
	}
}

// TestStoredSumsOnHost: so do loops that store what they sum up.
func TestStoredSumsOnHost(t *testing.T) {
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Kernels: true, Env: map[string]string{"FAKE_CUDA_MAJOR": "9"}}) {
		exec.StoredSums(t)
	}
}

// TestUpdateInPartsOnHost does that with a fake that runs a graph's tasks in any order that the graph allows.
func TestUpdateInPartsOnHost(t *testing.T) {
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Kernels: true, Env: map[string]string{"FAKE_CUDA_MAJOR": "9"}}) {
		exec.UpdateInParts(t)
	}
}

// TestPreludesTogetherOnHost has the fake compile them.
func TestPreludesTogetherOnHost(t *testing.T) {
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Kernels: true, Env: map[string]string{"FAKE_CUDA_MAJOR": "9"}}) {
		exec.PreludesTogether(t)
	}
}
