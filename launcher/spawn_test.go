//go:build linux

package launcher

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/internal/job"
)

// failTogether is what ranks do that train together: rank 1 fails, and rank 0 because of it, and earlier.
func failTogether(ctx context.Context, rank int) error {
	if rank == 1 {
		<-ctx.Done() // rank 0 has failed
		return errors.New("the real reason")
	}
	place, err := job.Lookup(os.LookupEnv)
	if err != nil {
		return err
	}
	err = errors.New("rank 1 did not come")
	return errors.Join(err, place.Report(job.Failure{Error: err.Error(), Consequence: true, By: 1}))
}

// quiet keeps what workers print out of the tests' output.
func quiet(c *Config) { c.Stdout, c.Stderr = new(safeBuffer), new(safeBuffer) }

func TestSpawnErrors(t *testing.T) {
	err := Spawn(t.Context(), 3, "error", quiet)
	var e *JobError
	if !errors.As(err, &e) {
		t.Fatalf("Spawn: %v", err)
	}
	if root := e.Root(); root.Rank != 1 || root.Error != "no more data\nin the second line" || e.ExitCode() != 1 || root.Stack != "" {
		t.Errorf("exit code %d, %+v", e.ExitCode(), root)
	}
}

func TestSpawnPanics(t *testing.T) {
	err := Spawn(t.Context(), 2, "panic", quiet)
	var e *JobError
	if !errors.As(err, &e) {
		t.Fatalf("Spawn: %v", err)
	}
	root := e.Root()
	if root.Rank != 1 || root.Error != "panic: runtime error: index out of range [1] with length 0" || e.ExitCode() != 2 {
		t.Errorf("exit code %d, %+v", e.ExitCode(), root)
	}
	if !strings.Contains(root.Stack, "main_test.go") {
		t.Errorf("the stack does not show where: %s", root.Stack)
	}
}

func TestSpawnKeepsConsequences(t *testing.T) {
	err := Spawn(t.Context(), 2, "consequence", quiet)
	var e *JobError
	if !errors.As(err, &e) {
		t.Fatalf("Spawn: %v", err)
	}
	if f := e.by(t, 0); !f.Consequence || f.By != 1 {
		t.Errorf("%+v", f)
	}
}

func TestSpawnInSpawn(t *testing.T) {
	out := new(safeBuffer)
	err := Spawn(t.Context(), 1, "nested", func(c *Config) { c.Stdout = out })
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[rank0]: hello from 0\n", "[rank1]: hello from 1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

func TestSpawnRefuses(t *testing.T) {
	check := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	check(Spawn(t.Context(), 2, "nobody"), `"nobody"`)
	check(Spawn(t.Context(), 0, "hello"), "0 processes")
	registry.Lock()
	registry.ready = false
	registry.Unlock()
	err := Spawn(t.Context(), 2, "hello")
	registry.Lock()
	registry.ready = true
	registry.Unlock()
	check(err, "launcher.Init")
}

func TestRegisterRefuses(t *testing.T) {
	for _, name := range []string{"", "hello"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Register(%q) is taken", name)
				}
			}()
			Register(name, func(context.Context, int) error { return nil })
		}()
	}
}
