package tools

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestAcceptIsInterrupted: a signal ends what gpuaccept is about, and the section in progress with it.
func TestAcceptIsInterrupted(t *testing.T) {
	if _, err := exec.LookPath("timeout"); err != nil {
		t.Skip(err)
	}
	script, err := os.ReadFile("gpuaccept")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for name, text := range map[string]string{
		"accept":     string(script),
		"nvidia-smi": "#!/bin/sh\n",
		"run":        "#!/bin/sh\necho begun >&3\nexec sleep 30\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o700); err != nil { //nolint:gosec // they are to be run
			t.Fatal(err)
		}
	}
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		accept := exec.CommandContext(t.Context(), filepath.Join(folder, "accept"), filepath.Join(folder, "out"), "tests", "tests")
		accept.Env = append(os.Environ(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"))
		accept.ExtraFiles = []*os.File{w}
		if err := errors.Join(accept.Start(), w.Close()); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewReader(r)
		if line, err := said.ReadString('\n'); err != nil || line != "begun\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if err := accept.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := accept.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Errorf("%v: %v, want exit status 130", signal, err)
		}
		if rest, err := io.ReadAll(said); err != nil || len(rest) > 0 { // to its end: none holds the pipe any more
			t.Errorf("%v: then there is %q, %v", signal, rest, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
