package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-train/tandem/internal/job"
)

// worker is one process of an attempt. Its goroutine waits for it.
type worker struct {
	place job.Place
	card  string
	cmd   *exec.Cmd
	pid   int

	tail    tail   // of stderr
	logFile string // of stderr

	// The driver's:
	halted bool         // the last look has seen it stopped
	state  processState // what was seen of it when the first worker failed

	mu      sync.Mutex
	gone    bool      // it has ended, and its number may be another's soon
	stopped time.Time // when the launcher signalled it first; zero if it had not before the end
	end     time.Time
	waitErr error
}

// wait waits for the end and then sends the worker to ended. Until it has noted the end, the process stays a zombie that keeps its
// number, so that no signal of ours reaches a stranger.
func (w *worker) wait(ended chan<- *worker) {
	for errors.Is(unix.Waitid(unix.P_PID, w.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	w.mu.Lock()
	w.gone, w.end = true, time.Now()
	// What it has left in its process group ends with it. Other than sweep, this needs no mark.
	_ = syscall.Kill(-w.pid, syscall.SIGKILL)
	w.waitErr = w.cmd.Wait()
	w.mu.Unlock()
	ended <- w
}

// signal sends signals to the worker's process group, if the worker still runs.
func (w *worker) signal(signals ...syscall.Signal) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil
	}
	if w.stopped.IsZero() {
		w.stopped = time.Now()
	}
	for _, sig := range signals {
		if err := syscall.Kill(-w.pid, sig); err != nil {
			return fmt.Errorf("send %s to rank %d (pid %d): %w", signalName(sig), w.place.Rank, w.pid, err)
		}
	}
	return nil
}

// seen is what can be seen of the worker.
func (w *worker) seen() processState {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return ""
	}
	return stateOf(w.pid)
}

// well reports whether the worker ended with 0.
func (w *worker) well() bool { return w.waitErr == nil }

// lastWord is how long before its end, or before it was asked to end, a worker's report must be for it to explain an end that has
// another reason as well. Workers go on after failures that they can live with, and what they said of those is old news.
const lastWord = 10 * time.Second

// failure is how the worker failed; ok is false for one that did not. The worker has ended, or is given up.
func (w *worker) failure(host string) (f WorkerFailure, ok bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone && w.well() {
		return f, false, nil
	}
	f = WorkerFailure{
		Rank: w.place.Rank, LocalRank: w.place.LocalRank, PID: w.pid, Host: host, Card: w.card, Time: w.end,
		State: string(w.state), LogFile: w.logFile, By: -1,
	}
	switch status := w.cmd.ProcessState; {
	case !w.gone:
		f.Time, f.ExitCode, f.Signal = time.Now(), 128+int(syscall.SIGKILL), signalName(syscall.SIGKILL)
		f.State = strings.TrimSpace("has not ended by it " + string(stateOf(w.pid)))
	case status == nil: // somebody else has waited for it
		f.ExitCode, f.State = 1, "ended unseen: "+w.waitErr.Error()
	default:
		ws, _ := status.Sys().(syscall.WaitStatus) // it is, on Unix
		f.ExitCode = ws.ExitStatus()
		if ws.Signaled() {
			f.ExitCode, f.Signal = 128+int(ws.Signal()), signalName(ws.Signal())
		}
	}
	var death string
	f.Tail, death = w.tail.text()

	own, err := job.ReadFailure(w.place.ErrorFile)
	signalled := !w.stopped.IsZero()
	if own != nil {
		until := f.Time
		if signalled {
			until = w.stopped
		}
		if another := signalled || f.Signal != "" || death != ""; another && until.Sub(own.Time) > lastWord {
			own = nil
		}
	}
	f.Stopped = signalled && (own == nil || own.Time.After(w.stopped)) // one that had failed already was only asked to hurry
	f.Hurried = signalled && !f.Stopped && f.Signal != ""
	f.Consequence = f.Stopped && f.State == "" // one that was stuck may be why others failed
	f.Error = f.ended()
	if death != "" {
		f.Error = death
	}
	if own != nil {
		f.Error, f.Stack, f.Time = own.Error, own.Stack, own.Time
		if own.Consequence {
			f.Consequence, f.By = true, own.By
		}
	}
	return f, true, err
}

// processState is what a process does that keeps it from its work, in words; "" if nothing does.
type processState string

const (
	isStopped processState = "was stopped (SIGSTOP)"
	isTraced  processState = "was stopped by a debugger"
	isBlocked processState = "was waiting for a device or a disk, which nothing interrupts"
)

// stateOf asks the system for a process's state.
func stateOf(pid int) processState {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "" // it has ended
	}
	// The state follows the program's name, which is in brackets and may have some of its own.
	at := bytes.LastIndexByte(stat, ')') + 2
	if at < 2 || at >= len(stat) {
		return ""
	}
	switch stat[at] {
	case 'T':
		return isStopped
	case 't':
		return isTraced
	case 'D':
		return isBlocked
	}
	return ""
}

// signalName is a signal's name, such as SIGTERM.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
