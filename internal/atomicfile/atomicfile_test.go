package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// holds checks that a folder has exactly this in one file.
func holds(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(list) != 1 {
		t.Errorf("the folder has %v, %v; want one file", list, err)
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"first", "", "third"} {
		if err := Write(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		holds(t, path, content)
	}
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := Check(path); err != nil {
		t.Error(err)
	}
	holds(t, path, "third")
}

func TestDiscard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("new"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Discard(); err != nil {
			t.Error(err)
		}
	}
	holds(t, path, "old")
	if f, err = Create(path); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Commit(), f.Discard()); err != nil {
		t.Error(err)
	}
	holds(t, path, "")
}

// What can't be put in place leaves nothing behind.
func TestCommitFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("x")); err == nil {
		t.Error("a file took the place of a folder")
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
		t.Errorf("the folder has %v, %v", list, err)
	}
	missing := filepath.Join(path, "none", "file")
	for _, err := range []error{Write(missing, nil), Check(missing)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("in no folder: %v", err)
		}
	}
}
