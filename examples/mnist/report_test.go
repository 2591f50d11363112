package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

func readReport(t *testing.T, path string) *report {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rep := new(report)
	if err := json.Unmarshal(text, rep); err != nil {
		t.Fatalf("%s: %v\n%s", path, err, text)
	}
	return rep
}

// fields are the names that programs which read reports rely on.
var fields = []string{
	"devices", "epochs", "images_per_second", "memory", "parameters_l2", "parameters_sha256", "seconds_to_first_step",
	"skipped_steps", "steps", "strategy", "test_accuracy", "train_loss", "world_size",
}

func TestReport(t *testing.T) {
	cudaopstest.Setup(t, "4x2GiB", "3,2,0,1")
	path := filepath.Join(t.TempDir(), "run.json")
	var out, notes strings.Builder
	args := []string{"--data", smallMNIST(t, 2000), "--devices", "2,0,3", "--strategy", "sharded", "--max-steps", "2", "--report", path}
	if code := run(t.Context(), args, &out, &notes); code != statusOK {
		t.Fatalf("exit status %d; stderr:\n%s", code, &notes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fields, slices.Sorted(maps.Keys(raw))); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}

	rep := readReport(t, path)
	name := rep.Devices[0].Name
	if diff := cmp.Diff([]device{{2, 0, name, true}, {0, 3, name, false}, {3, 1, name, false}}, rep.Devices); diff != "" || name == "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	for i, m := range rep.Memory {
		if m.Logical != rep.Devices[i].Logical || m.Allocated <= 0 || m.Reserved < m.Allocated {
			t.Errorf("memory %+v of device %+v", m, rep.Devices[i])
		}
	}
	if len(rep.Memory) != 3 || rep.WorldSize != 3 || rep.Strategy != "sharded" || rep.Steps != 2 || rep.Epochs != 0 {
		t.Errorf("reported %+v", rep)
	}
	if *rep.TrainLoss <= 0 || *rep.TestAccuracy <= 0 || *rep.TestAccuracy > 1 || *rep.FirstStepSecs <= 0 || rep.ImagesPerSec <= 0 ||
		rep.ParametersL2 <= 0 || len(rep.ParametersSHA256) != 64 {
		t.Errorf("reported %s", text)
	}
}

func TestReportOfHost(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	rep := reportOf(t, "--data", smallMNIST(t, 2000), "--max-steps", "1")
	if diff := cmp.Diff([]device{{-1, -1, "cpu", true}}, rep.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	// Parameters, gradients and momentum are 669,706 float32 each, at the least.
	if len(rep.Memory) != 1 || rep.Memory[0].Logical != -1 || rep.Memory[0].Allocated < 3*4*669_706 || rep.WorldSize != 1 {
		t.Errorf("reported %+v", rep)
	}
}

func TestCheckReport(t *testing.T) {
	dir := t.TempDir()
	if err := checkFile("--report", filepath.Join(dir, "run.json")); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]string{
		dir:                                     "no regular file",
		os.DevNull:                              "no regular file",
		filepath.Join(dir, "nowhere", "a.json"): "nowhere",
	} {
		if err := checkFile("--report", path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--report") {
			t.Errorf("checkReport(%q) = %v, want an error with --report and %q", path, err, want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the check leaves %v, %v", entries, err)
	}
}
