package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-train/tandem/launcher"
)

func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, statusOK},
		{errors.New("x"), statusFailure},
		{usagef("x"), statusUsage},
		{notFound("x"), statusNotFound},
		{&launcher.JobError{Failures: []launcher.WorkerFailure{{ExitCode: 7}}}, 7},
		{&programError{startStatus(&launcher.StartError{Err: fs.ErrNotExist}), nil}, statusNotFound},
		{&programError{startStatus(&launcher.StartError{Err: fs.ErrPermission}), nil}, statusNotExecutable},
	} {
		if got := status(tt.err); got != tt.want {
			t.Errorf("%v: status %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}}
	for _, tt := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{info, "tandem v1.2.3 (commit abc and changes), go1."},
		{&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "tandem (devel) (unknown commit), go1."},
		{nil, "tandem unknown version (unknown commit), go1."},
	} {
		if got := version(tt.info); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestLogger(t *testing.T) {
	var b strings.Builder
	log := newLogger(&b)
	log.Info("restarting", "attempt", 2, "of", 3)
	log.With("rank", 1).WithGroup("g").Warn("lost", "error", errors.New("gone"))
	log.Debug("not said")
	const want = "tandem: restarting (attempt 2, of 3)\ntandem: lost (rank 1, error gone)\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestReportFile: a report is put in place whole, and only over a file.
func TestReportFile(t *testing.T) {
	dir := t.TempDir()
	parse := func(path string) *runOptions {
		o, err := parseRun([]string{"--json-errors", path, "worker"}, noVariables)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	path := filepath.Join(dir, "errors.json")
	o := parse(path)
	for range 2 { // the second time over the first
		if err := o.clearReport(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an earlier report is still there: %v", err)
		}
		if err := o.writeReport(&launcher.JobError{RunID: "night"}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), `"run_id": "night"`) {
			t.Errorf("%s, %v", text, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v; want the report alone", entries, err)
	}
	if err := parse(dir).clearReport(); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a folder in place of the report: %v", err)
	}
	if err := parse(filepath.Join(dir, "no", "folder", "x")).writeReport(&launcher.JobError{}); err == nil || !strings.Contains(err.Error(), "--json-errors ") {
		t.Errorf("a folder that is gone: %v", err)
	}
}

// TestBuildThatIsInterrupted: what has ended the context is the error, not how the go command took it.
func TestBuildThatIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	signalled := &launcher.SignalError{Signal: syscall.SIGTERM}
	cancel(signalled)
	var output strings.Builder
	if file, err := (program{path: ".", goBuild: true}).build(ctx, t.TempDir(), &output); !errors.Is(err, signalled) || file != "" {
		t.Errorf("%q, %v; want %v", file, err, signalled)
	}
	if output.Len() > 0 {
		t.Errorf("output %q", &output)
	}
}

func TestImportPaths(t *testing.T) {
	for name, want := range map[string]bool{
		"github.com/x/y/cmd/z": true, "example.com/train": true,
		"train": false, "a.b": false, "bin/train": false, "./train": false, "../train": false, "/usr/bin/train": false, ".../x": false,
	} {
		if got := isImportPath(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}
