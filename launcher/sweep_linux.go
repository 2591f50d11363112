package launcher

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// sweepLimit is how long sweep tries. What is left by then waits for a device and cannot be killed.
const sweepLimit = 10 * time.Second

// sweep kills every process that has id in its [sweepVariable] until none is left. What is found by its environment is found wherever
// it has gone: into a session of its own, or away from its parent.
func sweep(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	pause := time.Millisecond
	// A process may start another between our listing and our look at it, and end: so one clean look is not enough.
	for clean := 0; clean < 2; {
		marked, err := markedProcesses(id)
		if err != nil {
			return err
		}
		if len(marked) == 0 {
			clean++
			continue
		}
		clean = 0
		for _, pid := range marked {
			if err := killMarked(pid, id); err != nil {
				return err
			}
		}
		select {
		case <-time.After(pause): // they need a moment to end
			pause = min(2*pause, 100*time.Millisecond)
		case <-ctx.Done():
			return fmt.Errorf("launcher: processes %v do not end by SIGKILL", marked)
		}
	}
	return nil
}

// markedProcesses lists the processes that have id in their mark.
func markedProcesses(id string) ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("launcher: find what workers have started: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("launcher: find what workers have started: %w", err)
	}
	var marked []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && hasMark(pid, id) {
			marked = append(marked, pid)
		}
	}
	return marked, nil
}

// hasMark reports whether a process runs and has id in its mark. Other users' processes cannot be read, and are none of ours.
func hasMark(pid int, id string) bool {
	environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if mark, ok := bytes.CutPrefix(v, []byte(sweepVariable+"=")); ok {
			return bytes.Contains(mark, []byte(id))
		}
	}
	return false
}

// killMarked kills a process. It takes hold of the process before it looks at the mark again, so that the number cannot have become
// another's in between.
func killMarked(pid int, id string) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("launcher: %w", err)
	}
	defer p.Release() //nolint:errcheck // it always succeeds
	if !hasMark(pid, id) {
		return nil
	}
	// It may have ended by itself, or belong to somebody else by now, whom we may not kill: the next look tells.
	_ = p.Kill()
	return nil
}
