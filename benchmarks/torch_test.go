package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// python puts a shell script in the place of python3. It gets "-" and the arguments.
func python(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\ncat >/dev/null\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestTorchMissing(t *testing.T) {
	args := []string{"--suite", "host", "--peer", "torch"}
	for _, c := range []struct {
		name string
		set  func(t *testing.T)
		want string
	}{
		{"python", func(t *testing.T) { t.Setenv("PATH", t.TempDir()) }, "no python3 in PATH"},
		{"torch", func(t *testing.T) { python(t, "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1") }, "pip install torch"},
		{"health", func(t *testing.T) { python(t, "echo out of luck >&2; exit 7") }, "exit status 7: out of luck"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.set(t)
			status, _, stderr := runHere(args...)
			if status != statusFailure || !strings.Contains(stderr, "--peer torch") || !strings.Contains(stderr, c.want) {
				t.Errorf("status %d, message %q, want %q", status, stderr, c.want)
			}
		})
	}
}

func TestTorchRows(t *testing.T) {
	const answer = `if [ "$2" != --suite ]; then echo 9.9; exit; fi
echo '{"suite":"host","workload":"mlp","batch":64,"mode":"torch, 2 cores","metric":"step","value":1e9,"unit":"ms","peer":null,"ratio":null}'
`
	python(t, answer)
	status, stdout, stderr := runHere("--suite", "host", "--workload", "mlp", "--peer", "torch", "--runs", "1", "--min-time", "0", "--threads", "2")
	if status != statusOK {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{"PyTorch 9.9", "torch, 2 cores", "times faster"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("output lacks %q:\n%s", want, stdout)
		}
	}

	python(t, answer+"echo '{\"speed\": 1}'\n")
	script, err := findTorch(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, err = script.run(context.Background(), &bench{suite: "host", cores: 2}, []string{"mlp"})
	if err == nil || !strings.Contains(err.Error(), `row 2`) || !strings.Contains(err.Error(), "speed") {
		t.Errorf("an unknown key: %v", err)
	}
}
