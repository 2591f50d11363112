package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestReport: the launcher reads what the process has reported last, with who and when.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	p := &Place{Rank: 3, ErrorFile: filepath.Join(dir, "error.json")}
	before := time.Now()
	for _, f := range []Failure{{Error: "the first"}, {Error: "out of memory", Stack: "main.main()", Consequence: true, By: -1}} {
		if err := p.Report(f); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadFailure(p.ErrorFile)
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := &Failure{Rank: 3, PID: os.Getpid(), Host: host, Error: "out of memory", Stack: "main.main()", Consequence: true, By: -1}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Failure{}, "Time")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Time.Before(before.Round(0)) || got.Time.After(time.Now()) {
		t.Errorf("time %v", got.Time)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v; want the file alone", entries, err)
	}
}

func TestReportWithoutFile(t *testing.T) {
	for _, p := range []*Place{nil, {}} {
		if err := p.Report(Failure{Error: "x"}); err != nil {
			t.Error(err)
		}
	}
	p := &Place{ErrorFile: filepath.Join(t.TempDir(), "no", "such", "folder")}
	if err := p.Report(Failure{Error: "x"}); err == nil || !strings.Contains(err.Error(), "job: error file: ") {
		t.Errorf("a folder that is not there: error %v", err)
	}
}

func TestReadFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	if f, err := ReadFailure(path); f != nil || err != nil {
		t.Errorf("no file: %v, %v; want nothing", f, err)
	}
	if err := os.WriteFile(path, []byte("{\"rank\": "), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := ReadFailure(path); f != nil || err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v, %v; want an error that names it", f, err)
	}
}
