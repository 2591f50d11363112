package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/tandem-train/tandem/internal/job"
)

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
		w := &worker{place: s.place(local), card: s.cfg.Workers[local].Card}
		w.place.Token = secret
		if err := s.startWorker(w); err != nil {
			s.result = &StartError{Rank: w.place.Rank, Program: s.cfg.Program, Err: err}
			return startFailed
		}
		s.workers = append(s.workers, w)
		s.live++
		go w.wait(s.ended)
	}
	s.cfg.Logger.Debug("workers run", "job", s.cfg.RunID, "workers", n, "attempt", s.attempt)
	return started
}

// place is a worker's place in the job.
func (s *supervisor) place(local int) job.Place {
	n := len(s.cfg.Workers)
	p := job.Place{
		Rank: s.cfg.Node*n + local, World: s.cfg.Nodes * n, LocalRank: local, LocalWorld: n, Node: s.cfg.Node, Nodes: s.cfg.Nodes,
		Addr: s.cfg.Addr, Port: s.port, ListenFD: -1, RunID: s.cfg.RunID,
		ErrorFile: filepath.Join(s.dir, fmt.Sprintf("error_%d_%d.json", s.attempt, local)),
		Role:      s.cfg.Role, Restart: s.attempt, MaxRestarts: s.cfg.MaxRestarts,
	}
	if p.Rank == 0 {
		p.ListenFD = 3 // the first after the standard streams
	}
	return p
}

// startWorker starts a worker and the readers of its output.
func (s *supervisor) startWorker(w *worker) error {
	own := s.cfg.Workers[w.place.LocalRank]
	w.cmd = exec.Command(s.cfg.Program, s.cfg.Args...)
	if s.cfg.self {
		w.cmd.Path, w.cmd.Err = "/proc/self/exe", nil
	}
	w.cmd.Dir = s.cfg.Dir
	w.cmd.Env = environment(s.cfg.Env, &w.place, sweepMark(s.id), own.Env)
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if w.place.ListenFD >= 0 {
		w.cmd.ExtraFiles = []*os.File{s.listener}
	}
	out, errs, err := s.openStreams(w)
	if err != nil {
		return err
	}
	defer out.Close()
	defer errs.Close()
	w.cmd.Stdout, w.cmd.Stderr = out, errs
	if err := onCPUs(own.CPUs, w.cmd.Start); err != nil {
		return startReason(err, w.cmd.Path)
	}
	w.pid = w.cmd.Process.Pid
	return nil
}

// openStreams makes the pipes of a worker's output and starts their readers, which end with the pipes: also if the worker does not
// start. It gives the worker's ends.
func (s *supervisor) openStreams(w *worker) (out, errs *os.File, err error) {
	prefix := ""
	if w.place.World > 1 {
		prefix = fmt.Sprintf("[rank%d]: ", w.place.Rank)
	}
	outFile, errFile, err := s.cfg.logFiles(s.logs, s.attempt, w.place.LocalRank)
	if err != nil {
		return nil, nil, err
	}
	w.logFile = errFile
	_, console := s.cfg.streams(w.place.LocalRank)
	read := func(st *stream, path string, console bool, to *outlet) (*os.File, error) {
		st.rank, st.prefix, st.logger = w.place.Rank, prefix, s.cfg.Logger
		if console {
			st.to = to
		}
		theirs, err := st.open(path)
		if err != nil {
			return nil, err
		}
		s.streams = append(s.streams, st)
		go st.read()
		return theirs, nil
	}
	if out, err = read(&stream{name: "stdout"}, outFile, console&Stdout != 0, s.out); err != nil {
		return nil, nil, err
	}
	if errs, err = read(&stream{name: "stderr", tail: &w.tail}, errFile, console&Stderr != 0, s.err); err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	return out, errs, nil
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
