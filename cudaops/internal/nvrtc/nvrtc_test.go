package nvrtc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cache"
	"github.com/tandem-train/tandem/cudaops/internal/dl"
)

// counting is a compiler whose code is the source and the number of the compilation.
type counting struct {
	mu      sync.Mutex
	version string
	n       int
	fail    error
}

func (c *counting) target(arch string) (string, bool, error) { return arch, false, nil }
func (c *counting) options() []string                        { return options }
func (c *counting) id() string                               { return c.version }

func (c *counting) build(source, target string, _ bool) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return fmt.Appendf(nil, "%s for %s, %d", source, target, c.n), c.fail
}

func (c *counting) get(t *testing.T, store *cache.Store, source, arch string) string {
	t.Helper()
	image, err := compileWith(c, store, source, arch)
	if err != nil {
		t.Fatal(err)
	}
	return string(image)
}

func newCache(t *testing.T, dir string) *cache.Store {
	return cache.At(dir, func(err error) { t.Errorf("warned of %v", err) })
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestCacheKeepsWhatDependsOnNothingElse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	store, c := newCache(t, dir), &counting{version: "1"}
	for range 2 {
		if got := c.get(t, store, "x", "sm_90"); got != "x for sm_90, 1" {
			t.Errorf("got %q", got)
		}
	}
	if got := c.get(t, store, "x", "sm_80"); got != "x for sm_80, 2" {
		t.Errorf("another card: got %q", got)
	}
	if got := c.get(t, store, "y", "sm_90"); got != "y for sm_90, 3" {
		t.Errorf("another source: got %q", got)
	}
	c.version = "2"
	if got := c.get(t, store, "x", "sm_90"); got != "x for sm_90, 4" {
		t.Errorf("another version: got %q", got)
	}
	if n := len(entries(t, dir)); n != 4 {
		t.Errorf("%d files, want 4", n)
	}
}

func TestCacheMendsDamage(t *testing.T) {
	dir := t.TempDir()
	store, c := newCache(t, dir), &counting{}
	c.get(t, store, "x", "sm_90")
	if err := os.WriteFile(entries(t, dir)[0], []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := c.get(t, store, "x", "sm_90"); got != "x for sm_90, 2" {
			t.Errorf("got %q", got)
		}
	}
}

func TestCacheThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	warnings := 0
	store, c := cache.At(filepath.Join(file, "below"), func(error) { warnings++ }), &counting{}
	if got := c.get(t, store, "x", "sm_90"); got != "x for sm_90, 1" || warnings != 1 {
		t.Errorf("got %q and %d warnings", got, warnings)
	}
}

func TestWithoutCache(t *testing.T) {
	t.Setenv(cache.Variable, "off")
	c := &counting{}
	for want := 1; want <= 2; want++ {
		if got := c.get(t, kernels(), "x", "sm_90"); got != fmt.Sprintf("x for sm_90, %d", want) {
			t.Errorf("got %q", got)
		}
	}
}

// Several cards load one program at once: one compilation.
func TestCompileOnce(t *testing.T) {
	store, c := newCache(t, t.TempDir()), &counting{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if image, err := compileWith(c, store, "x", "sm_90"); err != nil || string(image) != "x for sm_90, 1" {
				t.Errorf("got %q, %v", image, err)
			}
		})
	}
	wg.Wait()
	if len(busy.locks) != 0 {
		t.Errorf("%d locks are left", len(busy.locks))
	}
}

func TestFailureIsNotKept(t *testing.T) {
	dir := t.TempDir()
	store, c := newCache(t, dir), &counting{fail: errors.New("no")}
	if _, err := compileWith(c, store, "x", "sm_90"); !errors.Is(err, c.fail) {
		t.Errorf("got %v", err)
	}
	if files := entries(t, dir); len(files) != 0 {
		t.Errorf("kept %v", files)
	}
}

func TestTarget(t *testing.T) {
	l := &Library{archs: []int{75, 80, 86, 90}, Major: 13}
	for _, c := range []struct {
		arch, want string
		virtual    bool
	}{{"sm_90", "sm_90a", false}, {"sm_89", "compute_86", true}, {"sm_120", "compute_90", true}, {"sm_75", "sm_75", false}} {
		got, virtual, err := l.target(c.arch)
		if err != nil || got != c.want || virtual != c.virtual {
			t.Errorf("%s: got %s, %v, %v", c.arch, got, virtual, err)
		}
	}
	for _, arch := range []string{"sm_70", "90a", ""} {
		if got, _, err := l.target(arch); err == nil {
			t.Errorf("%q: got %s", arch, got)
		}
	}
}

func TestCompileErrorShowsTheLine(t *testing.T) {
	err := &CompileError{Target: "sm_90", Log: "tandem.cu(2): error: identifier \"y\" is undefined\n\n1 error detected", Source: "one\nx = y;\nthree"}
	want := "nvrtc: compile for sm_90:\n\ttandem.cu(2): error: identifier \"y\" is undefined\n\t    2 | x = y;\n\t1 error detected"
	if err.Error() != want {
		t.Errorf("got\n%s\nwant\n%s", err, want)
	}
}

// With the library itself, where it is.
func TestLibrary(t *testing.T) {
	lib, err := Open()
	var missing *dl.MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: version %d.%d for %v", lib.Path(), lib.Major, lib.Minor, lib.archs)
	store := newCache(t, t.TempDir())
	newest := lib.archs[len(lib.archs)-1]
	for _, arch := range []string{fmt.Sprintf("sm_%d", newest), fmt.Sprintf("sm_%d", newest+1)} {
		image, err := compileWith(lib, store, `extern "C" __global__ void f(float *x) { x[threadIdx.x] = 1.f; }`, arch)
		if err != nil || len(image) == 0 {
			t.Errorf("%s: %d bytes, %v", arch, len(image), err)
		}
	}
	var failed *CompileError
	if _, err := compileWith(lib, store, "one\n;", "sm_90"); !errors.As(err, &failed) || !strings.Contains(err.Error(), "| one") {
		t.Errorf("got %v", err)
	}
}
