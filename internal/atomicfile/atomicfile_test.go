package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestMain runs all tests twice, the second time as where files have names from the start.
func TestMain(m *testing.M) {
	status := m.Run()
	if status == 0 {
		nameless = func(string) *os.File { return nil }
		status = m.Run()
	}
	os.Exit(status)
}

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
	if err := Check(path); err != nil {
		t.Error(err)
	}
	holds(t, path, "third")
}

// A new file has the permissions that any other program would give it, and a file in the place of another has those of that.
func TestPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has other ones")
	}
	path := filepath.Join(t.TempDir(), "file")
	check := func(want fs.FileMode) {
		t.Helper()
		if err := Write(path, nil); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%v, %v; want %v", info.Mode(), err, want)
		}
	}
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := plain.Stat()
	if err := errors.Join(err, plain.Close()); err != nil {
		t.Fatal(err)
	}
	check(info.Mode().Perm())
	for _, mode := range []fs.FileMode{0o600, 0o660} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		check(mode)
	}
}

// A link stays one, whether there was something where it leads or not.
func TestLink(t *testing.T) {
	folder := t.TempDir()
	path, link, first := filepath.Join(folder, "there", "file"), filepath.Join(folder, "here", "link"), filepath.Join(folder, "here", "first")
	for _, dir := range []string{path, link} {
		if err := os.Mkdir(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(filepath.Join("..", "there", "file"), link), os.Symlink(link, first)); err != nil {
		t.Skip(err) // not everyone may on Windows
	}
	for _, content := range []string{"first", "second"} {
		if err := Write(first, []byte(content)); err != nil {
			t.Fatal(err)
		}
		holds(t, path, content)
	}
	ring := filepath.Join(folder, "ring")
	if err := os.Symlink(ring, ring); err != nil {
		t.Fatal(err)
	}
	if err := Write(ring, nil); err == nil {
		t.Error("a link to itself was written to")
	}
}

// Devices stay.
func TestNotRegular(t *testing.T) {
	for _, path := range []string{t.TempDir(), os.DevNull} {
		if err := Check(path); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
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

// A process that is killed leaves nothing behind of a file that it was writing, where the system can do that.
func TestNameless(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if f.temp != "" {
		t.Skip("there are no files without a name here")
	}
	if _, err := f.WriteString("new"); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 0 {
		t.Errorf("the folder has %v, %v", list, err)
	}
	if err := f.Commit(); err != nil {
		t.Error(err)
	}
	holds(t, path, "new")
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
