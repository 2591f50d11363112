//go:build linux

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// These tests have the launcher in a process of its own, which they can send signals to and kill.

// testVariable marks everything that a test has started, guards included.
const testVariable = "TANDEM_TEST_ID"

// launcherMain is a launcher's main: it runs two puppets.
func launcherMain() int {
	ctx, stop := Interrupt(context.Background())
	defer stop()
	grace, err := time.ParseDuration(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	err = Run(ctx, Config{Program: "/proc/self/exe", Workers: make([]Worker, 2), Grace: grace, Env: append(os.Environ(), roleVariable+"=worker")})
	var sig *SignalError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &sig):
		return sig.ExitCode()
	default:
		fmt.Fprintln(os.Stderr, err)
		return 98
	}
}

// ownLauncher is a launcher in a process of its own.
type ownLauncher struct {
	t     *testing.T
	stage *stage
	id    string
	tmp   string
	cmd   *exec.Cmd
	p     []*puppet
}

func startLauncher(t *testing.T, grace time.Duration, stdout io.Writer) *ownLauncher {
	t.Helper()
	l := &ownLauncher{t: t, stage: newStage(t), id: randomHex(8), tmp: t.TempDir()}
	l.cmd = exec.Command(testBinary(t), grace.String())
	l.cmd.Env = append(os.Environ(), roleVariable+"=launcher", stageVariable+"="+l.stage.addr, testVariable+"="+l.id, "TMPDIR="+l.tmp)
	l.cmd.Stdout, l.cmd.Stderr = stdout, os.Stderr
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cmd.Process.Kill() }) // of a launcher that a failed test has left
	l.p = l.stage.next(2)
	return l
}

func (l *ownLauncher) signal(sig syscall.Signal) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(sig); err != nil {
		l.t.Fatal(err)
	}
}

// end waits for the launcher's end, and sees that nothing is left of it. It gives the exit status.
func (l *ownLauncher) end() int {
	l.t.Helper()
	err := l.cmd.Wait()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		l.t.Fatal(err)
	}
	noneLeft(l.t, testVariable+"="+l.id)
	left, err := os.ReadDir(l.tmp)
	if err != nil {
		l.t.Fatal(err)
	}
	if len(left) > 0 {
		l.t.Errorf("files are left: %v", left)
	}
	return l.cmd.ProcessState.ExitCode()
}

func TestLauncherGetsSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(signalName(sig), func(t *testing.T) {
			if signal.Ignored(sig) {
				t.Skipf("%s is ignored where these tests were started", signalName(sig))
			}
			l := startLauncher(t, patience, io.Discard)
			l.p[0].do("start session")
			l.p[1].do("start plain")
			l.stage.next(2)
			l.p[0].do("catch")
			l.p[1].do("catch")
			l.signal(sig)
			for _, p := range l.p {
				if got := p.hear(); got != sig.String() {
					t.Errorf("rank %d heard %q", p.rank, got)
				}
				p.tell("exit 0")
			}
			if got := l.end(); got != 128+int(sig) {
				t.Errorf("exit status %d", got)
			}
		})
	}
}

func TestSecondSignalKills(t *testing.T) {
	l := startLauncher(t, time.Hour, io.Discard)
	l.p[0].do("catch")
	l.p[1].do("catch")
	l.signal(syscall.SIGTERM)
	l.p[0].hear()
	l.p[1].hear()
	// Signals that come too soon after the first count as the same, so there are as many as it takes.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.p[0].gone()
		l.p[1].gone()
	}()
	for {
		_ = l.cmd.Process.Signal(syscall.SIGTERM) // it may be a zombie by now
		select {
		case <-ended:
			if got := l.end(); got != 143 {
				t.Errorf("exit status %d", got)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestLauncherIsKilled(t *testing.T) {
	l := startLauncher(t, patience, io.Discard)
	l.p[0].do("ignore")
	for _, kind := range []string{"plain", "session", "holder"} {
		l.p[0].do("start " + kind)
		l.stage.next(1)[0].do("ignore")
	}
	l.signal(syscall.SIGKILL)
	if got := l.end(); got != -1 {
		t.Errorf("exit status %d", got)
	}
}

// guard is the process id of the launcher's guard.
func (l *ownLauncher) guard() int {
	l.t.Helper()
	for _, dir := range withVariable(l.t, testVariable+"="+l.id) {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue
		}
		if _, is := lookup(environ, guardVariable); is {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				l.t.Fatal(err)
			}
			return pid
		}
	}
	l.t.Fatal("the launcher has no guard")
	return 0
}

// TestGuardLetsGoOfTheOutput: who reads a launcher's output sees its end when it ends, even if by SIGKILL.
func TestGuardLetsGoOfTheOutput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := startLauncher(t, patience, w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	guard := l.guard()
	if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil { // it still holds what it has
		t.Fatal(err)
	}
	l.signal(syscall.SIGKILL)
	if _, err := io.ReadAll(r); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(guard, syscall.SIGCONT); err != nil { // now it does its work
		t.Fatal(err)
	}
	l.end()
}

// TestReaderOfTheLauncherGoes: workers run on when nobody reads what they print, and the launcher does, too.
func TestReaderOfTheLauncherGoes(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := startLauncher(t, patience, w)
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	l.p[0].do("flood 3")
	l.p[0].do("lines 1000")
	l.p[1].do("lines 1000")
	l.p[0].tell("exit 0")
	l.p[1].tell("exit 0")
	if got := l.end(); got != 0 {
		t.Errorf("exit status %d", got)
	}
}
