// Package dl opens the shared libraries of CUDA at run time, so that one program serves machines with cards and machines without.
//
// A [Library] is looked for under several file names, the newest first: in the folders of TANDEM_CUDA_PATH (with colons between them, each
// itself and its lib64 and lib), in the loader's own path, and in /usr/local/cuda. One that is nowhere is a [*MissingError].
package dl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// PathVariable lists folders to look into first.
const PathVariable = "TANDEM_CUDA_PATH"

// Library is an open shared library. It stays open as long as the process lives.
type Library struct {
	Path   string // of its file
	handle uintptr
}

// MissingError is the error of a library that could not be opened.
type MissingError struct {
	Names []string // of files that were looked for
	For   string   // what it is needed for
	Err   error    // of the last try
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s not found, which is needed for %s: install it, or name its folder in %s (%v)", strings.Join(e.Names, ", "), e.For, PathVariable, e.Err)
}

// Unwrap returns what the loader said of the last file tried.
func (e *MissingError) Unwrap() error { return e.Err }

// Open opens the first file that there is of the names given. what is what the library is needed for, for the error.
func Open(what string, names ...string) (*Library, error) {
	var last error
	for _, dir := range folders() {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if dir != "" {
				if _, err := os.Stat(path); err != nil {
					continue
				}
			}
			handle, err := load(path)
			if err == nil {
				return &Library{Path: where(path), handle: handle}, nil
			}
			if dir != "" || last == nil {
				last = err // of a file that is there, rather than the loader's of one that is not
			}
		}
	}
	if last == nil {
		last = os.ErrNotExist
	}
	return nil, &MissingError{Names: names, For: what, Err: last}
}

// Call is a function that takes integers and addresses of what C does not keep, none of them Go's, and returns an int. Calling it
// takes a fraction of what a bound function type takes, which Go's reflection goes through: for what is called in every step.
type Call uintptr

// BindAll binds every function of a list by name.
func (l *Library) BindAll(functions map[string]any) error {
	for name, fn := range functions {
		if err := l.Bind(fn, name); err != nil {
			return err
		}
	}
	return nil
}

// folders are where libraries are looked for, in order; "" is the loader's own path.
func folders() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv(PathVariable)) {
		if dir != "" {
			dirs = append(dirs, dir, filepath.Join(dir, "lib64"), filepath.Join(dir, "lib"))
		}
	}
	return append(dirs, "", "/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/local/cuda/compat")
}

// where finds the file of a library that was opened by its name alone.
func where(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return path
	}
	for line := range strings.Lines(string(maps)) {
		// The file may be another one's target: libcuda.so.1 is libcuda.so.580.1.
		if fields := strings.Fields(line); len(fields) == 6 && strings.HasPrefix(filepath.Base(fields[5]), strings.TrimRight(path, ".0123456789")) {
			return fields[5]
		}
	}
	return path
}
