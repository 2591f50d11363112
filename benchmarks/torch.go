package main

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// torchPeer is PyTorch, on machines that have it.
const torchPeer = "torch"

// The scripts, which travel inside the binary: it may run far from this folder.
const (
	torchOnCPU   = "torch_cpu.py"
	torchOnCard  = "torch_card.py"
	torchOnCards = "torch_cards.py"
)

//go:embed peers
var scripts embed.FS

// script is the file of a script, in a folder that is there until the end.
func (b *bench) script(name string) (string, error) {
	if b.scripts == "" {
		dir, err := os.MkdirTemp("", "tandem-bench-")
		if err != nil {
			return "", fmt.Errorf("--peer torch: %w", err)
		}
		b.scripts = dir
		if err := os.CopyFS(dir, scripts); err != nil {
			return "", fmt.Errorf("--peer torch: %w", err)
		}
	}
	return filepath.Join(b.scripts, "peers", name), nil
}

// torch is a process of PyTorch that works when it is told to, so that its samples come in turn with ours.
type torch struct {
	version string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  bytes.Buffer
}

// torchAnswer is a line that the process writes: one when it is ready, then one to each request.
type torchAnswer struct {
	Version string  `json:"version"`
	Seconds float64 `json:"seconds"`
}

// startTorch starts Python, which serves with one of the scripts. launcher are arguments that come before that. It lives until close or until ctx ends.
func (b *bench) startTorch(ctx context.Context, script string, launcher ...string) (*torch, error) {
	script, err := b.script(script)
	if err != nil {
		return nil, err
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, errors.New("--peer torch: no python3 in PATH: install Python and PyTorch, or leave this peer out")
	}
	t := &torch{cmd: exec.CommandContext(ctx, python, append(launcher, script, "--serve")...)}
	t.cmd.Stderr = &t.stderr
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("--peer torch: %w", err)
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("--peer torch: %w", err)
	}
	t.out = bufio.NewReader(out)
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("--peer torch: %w", err)
	}
	a, err := t.answer()
	if err != nil {
		if strings.Contains(t.stderr.String(), "No module named 'torch'") {
			err = fmt.Errorf("--peer torch: %s has no module torch: install it (python3 -m pip install torch), or leave this peer out", python)
		}
		return nil, err
	}
	t.version = a.Version
	return t, nil
}

// contender is a workload of the script: training steps, or a product of size x size matrices.
func (t *torch) contender(workload string, size, cores int) contender {
	return func(ctx context.Context, n int) (time.Duration, error) {
		a, err := t.ask(ctx, `{"workload": %q, "size": %d, "cores": %d, "calls": %d}`, workload, size, cores, n)
		return time.Duration(a.Seconds * float64(time.Second)), err
	}
}

// ask sends a request and waits for the answer.
func (t *torch) ask(ctx context.Context, request string, args ...any) (torchAnswer, error) {
	if _, err := fmt.Fprintf(t.in, request+"\n", args...); err != nil {
		return torchAnswer{}, t.failed(err)
	}
	a, err := t.answer()
	if ctx.Err() != nil {
		err = ctx.Err() // which has ended the process
	}
	return a, err
}

// answer reads the next line.
func (t *torch) answer() (torchAnswer, error) {
	var a torchAnswer
	line, err := t.out.ReadBytes('\n')
	if err != nil {
		return a, t.failed(err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, t.failed(fmt.Errorf("its answer %q: %w", line, err))
	}
	return a, nil
}

// failed ends the process and says why it failed: what it said itself, and what was seen of that here.
func (t *torch) failed(seen error) error {
	err := errors.Join(t.in.Close(), t.cmd.Wait())
	if err == nil {
		err = seen
	}
	if said := bytes.TrimSpace(t.stderr.Bytes()); len(said) > 0 {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return fmt.Errorf("--peer torch: %w", err)
}

// close ends the process.
func (t *torch) close() error {
	if t.cmd.ProcessState != nil { // it has failed, and has been reported
		return nil
	}
	if err := errors.Join(t.in.Close(), t.cmd.Wait()); err != nil {
		return fmt.Errorf("--peer torch: %w", err)
	}
	return nil
}
