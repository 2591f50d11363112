package launcher

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// The guard is a process that outlives a launcher that is killed: this executable once more, which does nothing but wait for the end
// of a pipe that the launcher holds. When it comes, the guard kills whatever is marked as the job's. A launcher that ends in its own
// way kills its guard first.
const (
	guardVariable    = "TANDEM_GUARD"     // the job's sweep id: makes a process a guard
	guardDirVariable = "TANDEM_GUARD_DIR" // the launcher's temporary folder
)

func init() {
	if id := os.Getenv(guardVariable); id != "" {
		os.Exit(standGuard(id, os.Getenv(guardDirVariable)))
	}
}

// standGuard is the guard's whole life.
func standGuard(id, dir string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	// Nothing is ever written: both an end and an error say that the launcher is gone.
	_, _ = io.Copy(io.Discard, os.Stdin)
	status := 0
	if sweep(id) != nil { // nobody is there to be told
		status = 1
	}
	if dir != "" && os.RemoveAll(dir) != nil {
		status = 1
	}
	return status
}

// guard is a launcher's guard.
type guard struct {
	cmd  *exec.Cmd
	hold *os.File // its other end is the guard's stdin
}

// startGuard starts a guard and does not wait until it is ready: should the launcher be killed before, it finds the pipe at its end.
func startGuard(id, dir string) (*guard, error) {
	theirs, hold, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("launcher: guard: %w", err)
	}
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe") // also when the file has been replaced since
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), guardVariable+"="+id, guardDirVariable+"="+dir)
	cmd.Stdin = theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what a terminal sends to its processes is not for the guard
	if err := cmd.Start(); err != nil {
		hold.Close()
		return nil, fmt.Errorf("launcher: guard: %w", err)
	}
	return &guard{cmd: cmd, hold: hold}, nil
}

// dismiss ends the guard.
func (g *guard) dismiss() {
	defer g.hold.Close()
	_ = g.cmd.Process.Kill() // an error says that it has ended
	_ = g.cmd.Wait()         // "killed"
}
