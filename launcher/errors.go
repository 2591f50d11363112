package launcher

import (
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"
)

// JobError is the error of a job whose workers have failed. Its JSON is what `tandem run --json-errors` writes.
type JobError struct {
	RunID    string `json:"run_id"`
	Restarts int    `json:"restarts"` // that were tried
	// Failures has the root cause first, as far as it is known, and its consequences last.
	Failures []WorkerFailure `json:"failures"`
}

// WorkerFailure is how one worker failed.
type WorkerFailure struct {
	Rank      int       `json:"rank"`
	LocalRank int       `json:"local_rank"`
	PID       int       `json:"pid"`
	Host      string    `json:"host"`
	Card      string    `json:"card,omitempty"`
	Time      time.Time `json:"time"` // of its report, or else its end

	// ExitCode is its exit status, or 128 and the signal's number, as shells say it.
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitempty"` // the signal that ended it, such as SIGKILL
	// State is what else was seen of it when the first worker failed, such as "was stopped (SIGSTOP)".
	State string `json:"state,omitempty"`

	// Error says why it ended: in its own words if it has left any.
	Error string `json:"error"`
	Stack string `json:"stack,omitempty"`
	Tail  string `json:"stderr_tail,omitempty"` // the last lines of its stderr
	// LogFile is the file that has all of its stderr; "" for none.
	LogFile string `json:"log_file,omitempty"`

	// Stopped says that the launcher had ended it, because another failed.
	Stopped bool `json:"stopped,omitempty"`
	// Hurried says that it had failed by itself before, but it was the launcher's signal that ended it.
	Hurried bool `json:"hurried,omitempty"`
	// Consequence says that it would not have failed had another not failed first, and By which rank: -1 if that is not known.
	Consequence bool `json:"consequence,omitempty"`
	By          int  `json:"by"`
}

// Root is the failure that caused the others, as far as that is known.
func (e *JobError) Root() WorkerFailure { return e.Failures[0] }

func (e *JobError) Error() string {
	f := e.Root()
	return fmt.Sprintf("launcher: rank %d (pid %d) failed: %s", f.Rank, f.PID, f.Error)
}

// ExitCode is what the launcher's own exit status should be: that of the first worker that failed, and ended, by itself.
func (e *JobError) ExitCode() int {
	for _, f := range e.Failures {
		if !f.Stopped && !f.Hurried {
			return f.ExitCode
		}
	}
	return e.Root().ExitCode
}

// SignalError is the error of a job that was ended by a signal to its launcher, and the cause of a context that [Interrupt] ended.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string { return "launcher: ended by " + signalName(e.Signal) }

// ExitCode is how shells say that a process was ended by the signal.
func (e *SignalError) ExitCode() int { return 128 + int(e.Signal) }

// ConfigError is the error of a [Config] that makes no sense.
type ConfigError struct{ Field, Why string }

func (e *ConfigError) Error() string { return fmt.Sprintf("launcher: Config.%s: %s", e.Field, e.Why) }

// StartError is the error of a worker that could not be started. None of the job runs then.
type StartError struct {
	Rank    int
	Program string
	Err     error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("launcher: cannot start rank %d: %s: %v", e.Rank, e.Program, e.Err)
}

// Unwrap gives the reason, which is fs.ErrNotExist, exec.ErrNotFound or fs.ErrPermission for a program that cannot be run.
func (e *StartError) Unwrap() error { return e.Err }

// AddressError is the error of an address at which rank 0 cannot listen.
type AddressError struct {
	Addr string
	Port int
	Err  error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("launcher: rank 0 cannot listen at %s: %v: %s", net.JoinHostPort(e.Addr, strconv.Itoa(e.Port)), e.Err, addressCure(e.Err))
}

// Unwrap gives the reason, such as syscall.EADDRINUSE.
func (e *AddressError) Unwrap() error { return e.Err }
