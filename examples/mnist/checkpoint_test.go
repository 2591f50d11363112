package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

// trigger calls a function when something that it is waiting for is written.
type trigger struct {
	strings.Builder
	on   string
	call func()
}

func (w *trigger) Write(p []byte) (int, error) {
	if w.on != "" && strings.Contains(string(p), w.on) {
		w.call()
	}
	return w.Builder.Write(p)
}

// TestCheckpoint interrupts a training again and again. Each time it goes on, and it comes to the parameters of one that was not interrupted.
func TestCheckpoint(t *testing.T) {
	const planned = 3 * 8 // of 500 images, 64 at a time
	images := smallMNIST(t, 500)
	for _, c := range []struct {
		name, cards string
		args        []string
	}{
		{"on the host", "", nil},
		{"on cards", "3", []string{"--strategy", "sharded", "--model", "cnn"}}, // with dropout
	} {
		t.Run(c.name, func(t *testing.T) {
			cudaopstest.Setup(t, c.cards, "")
			folder := t.TempDir()
			path := filepath.Join(folder, "run.safetensors")
			train := func(on string, want int, args ...string) (*report, string) {
				t.Helper()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var out strings.Builder
				notes := trigger{on: on, call: cancel}
				file := filepath.Join(folder, "run.json")
				if code := run(ctx, slices.Concat([]string{"--data", images, "--report", file}, c.args, args), &out, &notes); code != want {
					t.Fatalf("exit status %d, want %d:\n%s%s", code, want, &out, &notes)
				}
				return readReport(t, file), out.String()
			}
			whole, _ := train("", 0)
			last := 0
			for _, on := range []string{"epoch 1/3", "epoch 1/3", "epoch 2/3"} {
				rep, out := train(on, statusInterrupted, "--checkpoint", path)
				if last > 0 && !strings.Contains(out, "going on from "+path+", after ") {
					t.Errorf("it does not say where it goes on:\n%s", out)
				}
				if rep.Steps <= last || rep.Steps >= planned {
					t.Fatalf("interrupted after %d steps, begun after %d", rep.Steps, last)
				}
				last = rep.Steps
				t.Logf("interrupted after %d of %d steps", last, planned)
			}
			for _, way := range []string{"to the end", "where nothing is left to do"} {
				rep, out := train("", 0, "--checkpoint", path)
				if rep.ParametersSHA256 != whole.ParametersSHA256 || rep.Steps != planned || rep.Epochs != whole.Epochs || *rep.TestAccuracy != *whole.TestAccuracy {
					t.Errorf("%s: reached %+v, without an interruption %+v:\n%s", way, rep, whole, out)
				}
			}

			damaged, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged[len(damaged)-1] ^= 1
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			var out, notes strings.Builder
			args := slices.Concat([]string{"--data", images, "--checkpoint", path}, c.args)
			if code := run(t.Context(), args, &out, &notes); code != 1 || !strings.Contains(notes.String(), "--checkpoint "+path) || !strings.Contains(notes.String(), "damaged") {
				t.Errorf("a damaged checkpoint: exit status %d:\n%s", code, &notes)
			}
		})
	}
}
