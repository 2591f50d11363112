package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// programError is the error of a program that can't be run. It ends the command as it would end a shell's.
type programError struct {
	status int
	err    error
}

func (e *programError) Error() string { return e.err.Error() }
func (e *programError) Unwrap() error { return e.err }
func (e *programError) ExitCode() int { return e.status }

func notFound(format string, args ...any) error {
	return &programError{statusNotFound, fmt.Errorf(format, args...)}
}

// program is what PROGRAM names: a file to run, or what go build makes one of.
type program struct {
	path    string
	goBuild bool
}

// findProgram says what PROGRAM names: what is a path is a file that can be run, a folder of Go files or a Go file; another name is a
// command in PATH, or else the import path of a Go package.
func findProgram(name string) (program, error) {
	if !isPath(name) {
		path, err := exec.LookPath(name)
		switch {
		case err == nil:
			return program{path: path}, nil
		case errors.Is(err, exec.ErrDot):
			return program{}, notFound("%s: it is in this folder, which PATH should not have: run ./%s", name, name)
		case isImportPath(name):
			return program{path: name, goBuild: true}, nil
		}
		return program{}, notFound("%s: no such command in PATH; what works: a command, the path of a program such as ./%s, or a Go package such as ./examples/mnist", name, name)
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && isImportPath(name):
		return program{path: name, goBuild: true}, nil
	case err != nil:
		return program{}, notFound("%s: no such program: %w; what works: a command in PATH, the path of a program, or a Go package such as ./examples/mnist", name, errors.Unwrap(err))
	case info.IsDir():
		return goFolder(name)
	case strings.HasSuffix(name, ".go"):
		return program{path: name, goBuild: true}, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return program{}, &programError{statusNotExecutable, fmt.Errorf("%s: it is there, but not executable: chmod +x %s, or name another program", name, name)}
	}
	return program{path: path}, nil
}

// isPath is whether a name says where a file is. Others are looked for in PATH.
func isPath(name string) bool {
	return strings.ContainsRune(filepath.ToSlash(name), '/') || name == "." || name == ".." || strings.HasSuffix(name, ".go")
}

// isImportPath is whether a name can be the import path of a package of some module, such as github.com/x/y/cmd/z: it begins with a
// host's name.
func isImportPath(name string) bool {
	host, _, more := strings.Cut(name, "/")
	return more && strings.Contains(strings.Trim(host, "."), ".")
}

func goFolder(name string) (program, error) {
	files, err := filepath.Glob(filepath.Join(name, "*.go"))
	if err != nil {
		return program{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(files) == 0 {
		return program{}, &programError{statusNotExecutable, fmt.Errorf("%s: it is a folder without Go files; what works: the folder of a Go program, or the path of a program", name)}
	}
	if !filepath.IsAbs(name) && !strings.HasPrefix(name, ".") {
		name = "./" + name // go build takes other names for import paths
	}
	return program{path: name, goBuild: true}, nil
}

// build makes a file of a Go program, in a folder that the caller removes. What the go command says goes to output.
func (p program) build(ctx context.Context, folder string, output io.Writer) (string, error) {
	file := filepath.Join(folder, buildName(p.path))
	// Whoever owns the checkout, a program that is built for one job needs no version.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", file, p.path)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	switch err := cmd.Run(); {
	case err == nil:
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%s: it is a Go program, and there is no go command in PATH to build it: build it elsewhere and name the file", p.path)
	default:
		return "", fmt.Errorf("%s: it does not build (go build: %w): no worker was started", p.path, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s: it is no program: go build made nothing that can be run; its package has to be main", p.path)
	}
	return file, nil
}

// buildName is what a built program is called: the last part of its path that is a name.
func buildName(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		abs = path
	}
	name := strings.TrimSuffix(filepath.Base(abs), ".go")
	if name == "" || name == string(filepath.Separator) {
		return "program"
	}
	return name
}
