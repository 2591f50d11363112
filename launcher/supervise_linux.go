package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/tandem-train/tandem/internal/job"
)

// killLimit is how long workers that were killed are waited for. One that waits for a device may need that.
const killLimit = 30 * time.Second

// hearing is how long workers that have failed, too, or are blamed by the first, have to end by themselves, and to say why. A test has
// more patience.
var hearing = time.Second

// supervisor drives the state machine of a job: it does what [next] asks for, and waits for what happens. All of it is one goroutine's.
type supervisor struct {
	cfg  Config
	ctx  context.Context
	id   string // what marks the job's processes
	host string
	dir  string // temporary: error files
	logs string // the job's folder of log files, or ""

	listener *os.File // rank 0's socket; nil on other nodes
	port     int
	console  *console
	out, err *outlet

	attempt int
	workers []*worker
	streams []*stream // of all workers, those included that could not be started
	live    int
	ended   chan *worker // with room for all
	failed  bool         // a worker of this attempt has failed

	done, again <-chan struct{} // the caller's context has ended; a second signal has come
	limit       *time.Timer     // of the grace time, then of killing
	failing     []*worker       // they end by themselves, and are not signalled yet
	heard       *time.Timer     // when they are signalled as well
	limitEvent  event
	tick        *time.Ticker // of looks at the workers
	result      error        // of the last attempt that went badly
}

// run is [Run] on Linux.
func run(ctx context.Context, cfg Config) (err error) {
	// Workers ask the system to be killed when their parent ends, and the system takes the thread that started them for it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Whoever reads our output may go. Without this, the next line would end this process.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	s := &supervisor{cfg: cfg, ctx: ctx, id: randomHex(16), done: ctx.Done(), limit: time.NewTimer(0), heard: time.NewTimer(0)}
	s.limit.Stop()
	s.heard.Stop()
	s.tick = time.NewTicker(cfg.MonitorInterval)
	defer s.tick.Stop()
	s.again, _ = ctx.Value(againKey{}).(chan struct{})
	s.console = &console{logger: cfg.Logger}
	s.out = &outlet{console: s.console, name: "stdout", to: cfg.Stdout}
	s.err = &outlet{console: s.console, name: "stderr", to: cfg.Stderr}
	if s.host, err = os.Hostname(); err != nil {
		return fmt.Errorf("launcher: name of this host: %w", err)
	}
	if s.dir, err = os.MkdirTemp("", "tandem-"); err != nil {
		return fmt.Errorf("launcher: folder for error files: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(s.dir); err != nil {
			cfg.Logger.Warn("a temporary folder is left", "error", err)
		}
	}()
	return s.supervise()
}

// supervise takes the machine from its first state to a final one.
func (s *supervisor) supervise() error {
	now := state{phase: listening, restarts: s.cfg.MaxRestarts}
	happened := s.listen()
	if s.listener != nil {
		defer s.listener.Close()
	}
	if happened == listened {
		g, err := startGuard(s.id, s.dir)
		if err != nil {
			s.cfg.Logger.Warn("should this launcher be killed, what workers have started stays", "error", err)
		} else {
			defer g.dismiss()
		}
	}
	for {
		var do action
		now, do = next(now, happened)
		if now.phase.final() {
			break
		}
		switch do {
		case doNothing:
			happened = nothing
		case doStart:
			happened = s.start()
		case doStop:
			happened = s.stop(now.verdict)
		case doKill:
			happened = s.kill()
		case doSweep:
			happened = s.finish(now)
		}
		if happened == nothing {
			happened = s.wait()
		}
	}
	switch now.phase {
	case succeeded:
		return nil
	case interrupted:
		return s.interruption()
	default:
		return s.result
	}
}

// interruption is the error of a job that the caller has ended.
func (s *supervisor) interruption() error {
	cause := context.Cause(s.ctx)
	var sig *SignalError
	if errors.As(cause, &sig) {
		return sig
	}
	return fmt.Errorf("launcher: job %s was ended: %w", s.cfg.RunID, cause)
}

// listen binds the socket, and claims the folder of the log files.
func (s *supervisor) listen() event {
	if s.port = s.cfg.Port; s.cfg.Node == 0 {
		if s.listener, s.port, s.result = listen(s.ctx, s.cfg.Addr, s.cfg.Port); s.result != nil {
			if s.ctx.Err() != nil {
				s.result = s.interruption()
			}
			return listenFailed
		}
	}
	if s.cfg.LogDir != "" {
		if s.logs, s.result = claimLogs(&s.cfg); s.result != nil {
			return listenFailed
		}
	}
	return listened
}

// wait waits for the next event.
func (s *supervisor) wait() event {
	for {
		again := s.again
		if s.done != nil {
			again = nil // the first signal comes first
		}
		select {
		case w := <-s.ended:
			return s.note(w)
		case <-s.limit.C:
			return s.limitEvent
		case <-s.done:
			s.done = nil
			return interrupt
		case <-again:
			s.again = nil
			return interruptAgain
		case <-s.heard.C:
			for _, w := range s.failing {
				s.signal(w, syscall.SIGTERM, syscall.SIGCONT)
			}
			s.failing = nil
		case <-s.tick.C:
			s.look()
		}
	}
}

// note takes a worker's end.
func (s *supervisor) note(w *worker) event {
	s.live--
	if w.well() {
		if s.live == 0 {
			return lastEndedWell
		}
		return endedWell
	}
	if !s.failed {
		s.failed = true
		s.failing = s.failingWith(w)
		for _, other := range s.workers {
			if other != w {
				other.state = other.seen()
			}
		}
	}
	if s.live == 0 {
		return lastEndedBadly
	}
	return endedBadly
}

// stop asks every worker to end, and those that were stopped to go on so that they hear it.
func (s *supervisor) stop(v verdict) event {
	sig := syscall.SIGTERM
	var given *SignalError
	if v == cut && errors.As(context.Cause(s.ctx), &given) {
		sig = given.Signal
	}
	for _, w := range s.workers {
		if !slices.Contains(s.failing, w) {
			s.signal(w, sig, syscall.SIGCONT)
		}
	}
	if s.failing != nil {
		s.heard.Reset(min(hearing, s.cfg.Grace))
	}
	s.limit.Reset(s.cfg.Grace)
	s.limitEvent = graceOver
	if s.live == 0 {
		return lastEndedWell
	}
	return nothing
}

// failingWith are the workers that have left word of a failure when w, the first, has ended by one, and the one that w says to have failed
// first. Others may learn of a failure before we do, and even end before the one that failed has said why.
func (s *supervisor) failingWith(w *worker) (failing []*worker) {
	blamed := -1
	if f := lastWordOf(w); f != nil && f.Consequence {
		blamed = f.By
	}
	for _, other := range s.workers {
		if f := lastWordOf(other); other != w && (other.place.Rank == blamed || f != nil && time.Since(f.Time) < lastWord) {
			failing = append(failing, other)
		}
	}
	return failing
}

// lastWordOf is what a worker has left word of, if it can be read: why it can't is told when failures are collected.
func lastWordOf(w *worker) *job.Failure {
	f, err := job.ReadFailure(w.place.ErrorFile)
	if err != nil {
		return nil
	}
	return f
}

// kill kills every worker that still runs.
func (s *supervisor) kill() event {
	s.failing = nil
	for _, w := range s.workers {
		s.signal(w, syscall.SIGKILL)
	}
	s.limit.Reset(killLimit)
	s.limitEvent = killOver
	return nothing
}

func (s *supervisor) signal(w *worker, signals ...syscall.Signal) {
	if err := w.signal(signals...); err != nil {
		s.cfg.Logger.Warn("a worker cannot be signalled", "error", err)
	}
}

// finish ends what the attempt's workers have left, reads their output to its end, and collects what they say.
func (s *supervisor) finish(now state) event {
	s.limit.Stop()
	s.heard.Stop()
	if err := sweep(s.id); err != nil {
		s.cfg.Logger.Warn("something of the job may be left", "error", err)
	}
	s.drain()
	if now.verdict == bad && s.result == nil {
		s.result = s.collect()
	}
	if now.verdict == bad && now.restarts > 0 {
		s.attempt++
		s.cfg.Logger.Warn("all workers are started again", "job", s.cfg.RunID, "restart", s.attempt, "of", s.cfg.MaxRestarts, "cause", s.result)
		s.result = nil
	}
	return swept
}

// drain waits until all output has been passed on. A console that does not take it is waited for, as any program would, until the
// caller's context ends.
func (s *supervisor) drain() {
	all := make(chan struct{})
	streams := s.streams
	for _, st := range streams {
		st.finish()
	}
	go func() {
		defer close(all)
		for _, st := range streams {
			<-st.done
		}
	}()
	select {
	case <-all:
		return
	case <-s.ctx.Done():
	}
	select {
	case <-all:
	case <-time.After(2 * idleLimit):
		s.console.left.Store(true) // what it has not taken is lost
	}
}

// collect is the error of an attempt that went badly.
func (s *supervisor) collect() error {
	e := &JobError{RunID: s.cfg.RunID, Restarts: s.attempt}
	for _, w := range s.workers {
		f, ok, err := w.failure(s.host)
		if err != nil {
			s.cfg.Logger.Warn("a worker's report cannot be read", "rank", w.place.Rank, "error", err)
		}
		if ok {
			e.Failures = append(e.Failures, f)
		}
	}
	order(e.Failures)
	return e
}

// look says when workers are stopped, and when they go on: nobody else would.
func (s *supervisor) look() {
	for _, w := range s.workers {
		state := w.seen()
		switch halted := state == isStopped || state == isTraced; {
		case halted && !w.halted:
			w.halted = true
			s.cfg.Logger.Warn("a worker is stopped, others may wait for it", "rank", w.place.Rank, "pid", w.pid, "state", string(state))
		case !halted && w.halted:
			w.halted = false
			s.cfg.Logger.Info("a worker is no longer stopped", "rank", w.place.Rank, "pid", w.pid)
		}
	}
}
