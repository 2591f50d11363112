package launcher

import (
	"bytes"
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
func sweep(id string) error {
	limit := time.NewTimer(sweepLimit)
	defer limit.Stop()
	stop := make(chan struct{})
	defer close(stop)
	done := make(chan error, 1)
	// The look at a process that is stuck in the system can be stuck there, too.
	go func() { done <- sweepUntil(stop, id) }()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return fmt.Errorf("launcher: processes of the job do not end within %v after SIGKILL", sweepLimit)
	}
}

// sweepUntil is sweep without its limit.
func sweepUntil(stop <-chan struct{}, id string) error {
	pause := time.Millisecond
	// A process may start another between our listing and our look at it, and end: so one clean look is not enough.
	for clean := 0; clean < 2; clean++ {
		marked, err := markedProcesses(id)
		if err != nil {
			return err
		}
		if len(marked) == 0 {
			continue
		}
		clean = -1
		for _, pid := range marked {
			if err := killMarked(pid, id); err != nil {
				return err
			}
		}
		select {
		case <-time.After(pause): // they need a moment to end
			pause = min(2*pause, 100*time.Millisecond)
		case <-stop:
			return nil
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
