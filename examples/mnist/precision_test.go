package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

// TestPrecisions: the example trains in every precision.
func TestPrecisions(t *testing.T) {
	if testing.Short() {
		t.Skip("what races in one precision races in all, and the first trains in other tests")
	}
	cudaopstest.Setup(t, "2x2GiB", "")
	digests := map[string]string{}
	for _, p := range []string{"fp32", "bf16", "fp16"} {
		path := filepath.Join(t.TempDir(), "run.json")
		var out, notes strings.Builder
		args := []string{"--data", smallMNIST(t, 2000), "--precision", p, "--max-steps", "20", "--report", path}
		if code := run(t.Context(), args, &out, &notes); code != statusOK {
			t.Fatalf("%s: exit status %d; stderr:\n%s", p, code, &notes)
		}
		rep := readReport(t, path)
		if !(*rep.TrainLoss < 2) || rep.SkippedSteps > 3 {
			t.Errorf("%s: loss %v after 20 steps, %d of them skipped", p, *rep.TrainLoss, rep.SkippedSteps)
		}
		for other, digest := range digests {
			if digest == rep.ParametersSHA256 {
				t.Errorf("%s gives the bits of %s", p, other)
			}
		}
		digests[p] = rep.ParametersSHA256
	}
}
