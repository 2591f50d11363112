package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// torchPeer is PyTorch, on machines that have it.
const torchPeer = "torch"

// torchProgram travels inside the binary, which may run far from this folder.
//
//go:embed peers/torch_cpu.py
var torchProgram string

// torchScript is a Python with PyTorch, and the script that measures it.
type torchScript struct {
	python, version string
}

// findTorch looks for python3 and PyTorch before anything is measured.
func findTorch(ctx context.Context) (*torchScript, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, errors.New("--peer torch: no python3 in PATH: install Python and PyTorch, or leave this peer out")
	}
	t := &torchScript{python: python}
	out, err := t.call(ctx, "import torch; print(torch.__version__)")
	switch {
	case err != nil && strings.Contains(err.Error(), "ModuleNotFoundError"):
		return nil, fmt.Errorf("--peer torch: %s has no module torch: install it (python3 -m pip install torch), or leave this peer out", python)
	case err != nil:
		return nil, fmt.Errorf("--peer torch: %w", err)
	}
	t.version = strings.TrimSpace(string(out))
	return t, nil
}

// run measures the workloads that the script knows, and returns their rows.
func (t *torchScript) run(ctx context.Context, b *bench, workloads []string) ([]row, error) {
	out, err := t.call(ctx, torchProgram,
		"--suite", b.suite, "--workload", strings.Join(workloads, ","), "--cores", strconv.Itoa(b.cores),
		"--runs", strconv.Itoa(b.runs), "--min-time", strconv.FormatFloat(b.minTime.Seconds(), 'g', -1, 64))
	if err != nil {
		return nil, fmt.Errorf("--peer torch: %w", err)
	}
	var rows []row
	d := json.NewDecoder(bytes.NewReader(out))
	d.DisallowUnknownFields()
	for {
		var r row
		switch err := d.Decode(&r); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, fmt.Errorf("--peer torch: row %d of its output: %w", len(rows)+1, err)
		}
		rows = append(rows, r)
	}
}

// call runs a Python program and returns what it prints.
func (t *torchScript) call(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, t.python, append([]string{"-"}, args...)...)
	cmd.Stdin = strings.NewReader(program)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", t.python, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}
