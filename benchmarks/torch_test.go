package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// python puts a shell script in the place of python3.
func python(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// ready is a script that says so, like the real one, and goes on with rest for each request.
func ready(rest string) string {
	return `[ -f "$1" ] && [ -f "$(dirname "$1")/torch_nets.py" ] && [ "$2" = --serve ] || exit 9
echo '{"version": "9.9"}'; while read request; do ` + rest + `; done`
}

func TestTorchFails(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         string // in the message
	}{
		{"no torch", "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1", "pip install torch"},
		{"no luck", "echo out of luck >&2; exit 7", "exit status 7: out of luck"},
		{"no sense", "echo hello", `"hello\n"`},
		{"no endurance", ready("echo tired >&2; exit 3"), "exit status 3: tired"},
		{"no time", ready("echo later"), `"later\n"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			python(t, c.script)
			status, stdout, stderr := runHere("--suite", "host", "--workload", "mlp", "--peer", "torch", "--runs", "1", "--min-time", "0")
			if status != statusFailure || !strings.Contains(stderr, "--peer torch: ") || !strings.Contains(stderr, c.want) {
				t.Errorf("status %d, message %q, want %q", status, stderr, c.want)
			}
			if stdout != "" || strings.Count(stderr, "--peer torch") != 1 {
				t.Errorf("one message, nothing else: %q, %q", stdout, stderr)
			}
		})
	}
	t.Run("no python", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		status, _, stderr := runHere("--suite", "host", "--peer", "torch")
		if status != statusFailure || !strings.Contains(stderr, "no python3 in PATH") {
			t.Errorf("status %d, message %q", status, stderr)
		}
	})
}

func TestTorchTakesTurns(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	requests := filepath.Join(t.TempDir(), "requests")
	python(t, ready(`echo "$request" >>`+requests+`; echo '{"seconds": 1000}'`))
	status, stdout, stderr := runHere("--suite", "host", "--workload", "mlp", "--peer", "torch", "--runs", "1", "--min-time", "0", "--threads", "2")
	if status != statusOK {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{"PyTorch 9.9", "| torch, 2 cores |", "times faster"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("output lacks %q:\n%s", want, stdout)
		}
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "tandem-bench-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	got, err := os.ReadFile(requests)
	if err != nil {
		t.Fatal(err)
	}
	small := `{"workload": "mlp", "size": 64, "cores": 2, "calls": 1}` + "\n"
	if want := strings.Repeat(small, 3) + strings.Repeat(strings.Replace(small, "64", "1024", 1), 3); string(got) != want {
		t.Errorf("requests:\n%swant:\n%s", got, want)
	}
}
