package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-train/tandem/internal/job"
)

// killLimit is how long workers that were killed are waited for. One that waits for a device may need that.
const killLimit = 30 * time.Second

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
	limitEvent  event
	result      error // of the last attempt that went badly
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

	s := &supervisor{cfg: cfg, ctx: ctx, id: randomHex(16), done: ctx.Done(), limit: time.NewTimer(0)}
	s.limit.Stop()
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

// claimLogs makes the folder of a job's log files. It is named after the job; if that is taken, by a job of the same name before, a
// number is added. Launchers of several nodes may write to the same disk, so that each has a folder in it.
func claimLogs(cfg *Config) (string, error) {
	dir := filepath.Join(cfg.LogDir, cfg.RunID)
	if cfg.Nodes > 1 {
		dir = filepath.Join(dir, "node_"+strconv.Itoa(cfg.Node))
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return "", fmt.Errorf("launcher: log folder: %w", err)
	}
	for i, name := 2, dir; ; i++ {
		err := os.Mkdir(name, 0o777)
		if err == nil {
			return name, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("launcher: log folder: %w", err)
		}
		name = dir + "_" + strconv.Itoa(i)
	}
}

// start starts every worker.
func (s *supervisor) start() event {
	n := len(s.cfg.Workers)
	s.workers, s.streams, s.live, s.failed = nil, nil, 0, false
	s.ended = make(chan *worker, n)
	if s.ctx.Err() != nil { // before, or while a restart was prepared
		s.done = nil
		return interrupt
	}
	secret := token(&s.cfg)
	for local := range n {
		w, err := s.startWorker(local, secret)
		if err != nil {
			s.result = &StartError{Rank: s.rank(local), Program: s.cfg.Program, Err: err}
			return startFailed
		}
		s.workers = append(s.workers, w)
		s.live++
		go w.wait(s.ended)
	}
	s.cfg.Logger.Debug("workers run", "job", s.cfg.RunID, "workers", n, "attempt", s.attempt)
	return started
}

func (s *supervisor) rank(local int) int { return s.cfg.Node*len(s.cfg.Workers) + local }

// startWorker starts one worker and the readers of its output.
func (s *supervisor) startWorker(local int, secret string) (_ *worker, err error) {
	n := len(s.cfg.Workers)
	own := s.cfg.Workers[local]
	w := &worker{card: own.Card, place: job.Place{
		Rank: s.rank(local), World: n * s.cfg.Nodes, LocalRank: local, LocalWorld: n, Node: s.cfg.Node, Nodes: s.cfg.Nodes,
		Addr: s.cfg.Addr, Port: s.port, Token: secret, ListenFD: -1, RunID: s.cfg.RunID,
		ErrorFile: filepath.Join(s.dir, fmt.Sprintf("error_%d_%d.json", s.attempt, local)),
		Role:      s.cfg.Role, Restart: s.attempt, MaxRestarts: s.cfg.MaxRestarts,
	}}
	w.cmd = exec.Command(s.cfg.Program, s.cfg.Args...)
	if s.cfg.self {
		w.cmd.Path, w.cmd.Err = "/proc/self/exe", nil
	}
	w.cmd.Dir = s.cfg.Dir
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if s.listener != nil && local == 0 {
		w.place.ListenFD = 3 + len(w.cmd.ExtraFiles)
		w.cmd.ExtraFiles = append(w.cmd.ExtraFiles, s.listener)
	}
	w.cmd.Env = environment(s.cfg.Env, &w.place, sweepMark(s.id), own.Env)

	outFile, errFile, err := s.logFiles(local)
	if err != nil {
		return nil, err
	}
	w.logFile = errFile
	prefix := ""
	if w.place.World > 1 {
		prefix = fmt.Sprintf("[rank%d]: ", w.place.Rank)
	}
	_, console := s.cfg.streams(local)
	open := func(path string, is Streams, to *outlet, tail *tail) (*os.File, error) {
		if console&is == 0 {
			to = nil
		}
		st, theirs, err := newStream(path, to, prefix, s.cfg.Logger)
		if err != nil {
			return nil, err
		}
		st.tail = tail
		s.streams = append(s.streams, st)
		go st.read() // to the pipe's end, which comes as well if the worker does not start
		return theirs, nil
	}
	theirOut, err := open(outFile, Stdout, s.out, nil)
	if err != nil {
		return nil, err
	}
	defer theirOut.Close()
	theirErr, err := open(errFile, Stderr, s.err, &w.tail)
	if err != nil {
		return nil, err
	}
	defer theirErr.Close()
	w.cmd.Stdout, w.cmd.Stderr = theirOut, theirErr
	if err := onCPUs(own.CPUs, w.cmd.Start); err != nil {
		return nil, startReason(err, w.cmd.Path)
	}
	w.pid = w.cmd.Process.Pid
	return w, nil
}

// startReason leaves out of an error what a [StartError] says already.
func startReason(err error, program string) error {
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		return lookup.Err
	}
	var path *fs.PathError
	if errors.As(err, &path) && path.Path == program {
		return path.Err
	}
	return err
}

// logFiles names the files of a worker's streams, "" for a stream without one.
func (s *supervisor) logFiles(local int) (out, err string, _ error) {
	files, _ := s.cfg.streams(local)
	if files == None {
		return "", "", nil
	}
	dir := filepath.Join(s.logs, "attempt_"+strconv.Itoa(s.attempt), strconv.Itoa(local))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", "", fmt.Errorf("launcher: log folder: %w", err)
	}
	if files&Stdout != 0 {
		out = filepath.Join(dir, "stdout.log")
	}
	if files&Stderr != 0 {
		err = filepath.Join(dir, "stderr.log")
	}
	return out, err, nil
}

// wait waits for the next event.
func (s *supervisor) wait() event {
	tick := time.NewTicker(s.cfg.MonitorInterval)
	defer tick.Stop()
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
		case <-tick.C:
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
	s.signal(sig, syscall.SIGCONT)
	s.limit.Reset(s.cfg.Grace)
	s.limitEvent = graceOver
	if s.live == 0 {
		return lastEndedWell
	}
	return nothing
}

// kill kills every worker that still runs.
func (s *supervisor) kill() event {
	s.signal(syscall.SIGKILL)
	s.limit.Reset(killLimit)
	s.limitEvent = killOver
	return nothing
}

func (s *supervisor) signal(signals ...syscall.Signal) {
	for _, w := range s.workers {
		if err := w.signal(signals...); err != nil {
			s.cfg.Logger.Warn("a worker cannot be signalled", "error", err)
		}
	}
}

// finish ends what the attempt's workers have left, reads their output to its end, and collects what they say.
func (s *supervisor) finish(now state) event {
	s.limit.Stop()
	if err := sweep(context.WithoutCancel(s.ctx), s.id); err != nil {
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
		s.console.left.Store(true)
		s.cfg.Logger.Warn("the last of the output is lost: nobody reads it")
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
		now := ""
		if s := w.seen(); strings.HasPrefix(s, "was stopped") {
			now = s
		}
		switch {
		case now != "" && w.halted == "":
			s.cfg.Logger.Warn("a worker is stopped, the others may wait for it", "rank", w.place.Rank, "pid", w.pid, "state", now)
		case now == "" && w.halted != "":
			s.cfg.Logger.Info("a worker goes on", "rank", w.place.Rank, "pid", w.pid)
		}
		w.halted = now
	}
}
