//go:build linux

package launcher

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

// by is the failure of a rank.
func (e *JobError) by(t *testing.T, rank int) WorkerFailure {
	t.Helper()
	for _, f := range e.Failures {
		if f.Rank == rank {
			return f
		}
	}
	t.Fatalf("no failure of rank %d in %+v", rank, e.Failures)
	return WorkerFailure{}
}

func TestWorkerExits(t *testing.T) {
	s := newShow(t, 3)
	s.cfg.Workers[1].Card = "physical card 3"
	p := s.start(t.Context())
	p[1].do("complain reading the data")
	p[1].tell("exit 3")
	e := s.fails()
	root := e.Root()
	if e.ExitCode() != 3 || root.Rank != 1 || root.LocalRank != 1 || root.ExitCode != 3 || root.PID != p[1].pid || root.Signal != "" || root.Stopped || root.Consequence {
		t.Errorf("exit code %d, root cause %+v", e.ExitCode(), root)
	}
	if root.Error != "exit status 3" || root.Tail != "reading the data" {
		t.Errorf("error %q, tail %q", root.Error, root.Tail)
	}
	for _, rank := range []int{0, 2} {
		if f := e.by(t, rank); !f.Stopped || !f.Consequence || f.Signal != "SIGTERM" || f.ExitCode != 143 {
			t.Errorf("rank %d: %+v", rank, f)
		}
	}
	for _, want := range []string{"root cause: rank 1", "physical card 3", "exit status 3", "reading the data", "then:", "rank 2 ("} {
		if !strings.Contains(e.Report(), want) {
			t.Errorf("the report lacks %q:\n%s", want, e.Report())
		}
	}
	if !strings.Contains(s.stderr.String(), "[rank1]: reading the data\n") {
		t.Errorf("stderr: %q", s.stderr.String())
	}
}

func TestWorkerPanics(t *testing.T) {
	s := newShow(t, 2)
	p := s.start(t.Context())
	p[0].tell("panic disco")
	root := s.fails().Root()
	if root.Rank != 0 || root.ExitCode != 2 || root.Error != "panic: at the disco" || !strings.Contains(root.Tail, "goroutine ") {
		t.Errorf("%+v", root)
	}
}

func TestWorkerIsKilled(t *testing.T) {
	s := newShow(t, 2)
	p := s.start(t.Context())
	if err := syscall.Kill(p[1].pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := s.fails()
	if root := e.Root(); e.ExitCode() != 137 || root.Rank != 1 || root.Signal != "SIGKILL" || root.Error != "killed by SIGKILL (out of memory killer?)" {
		t.Errorf("exit code %d, %+v", e.ExitCode(), root)
	}
}

// halt stops a puppet and waits until it is.
func (p *puppet) halt() {
	p.t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	for begin := time.Now(); stateOf(p.pid) != isStopped; time.Sleep(time.Millisecond) {
		if time.Since(begin) > patience {
			p.t.Fatal("it does not stop")
		}
	}
}

func TestWorkerIsStoppedWhileAnotherFails(t *testing.T) {
	s := newShow(t, 2)
	p := s.start(t.Context())
	p[0].halt()
	p[1].tell("exit 4")
	e := s.fails()
	if e.ExitCode() != 4 || e.Root().Rank != 1 {
		t.Errorf("exit code %d, root cause %+v", e.ExitCode(), e.Root())
	}
	// It has heard SIGTERM, so it was made to go on.
	if f := e.by(t, 0); f.State != "was stopped (SIGSTOP)" || !f.Stopped || f.Signal != "SIGTERM" {
		t.Errorf("%+v", f)
	}
}

func TestStoppedWorkerIsLogged(t *testing.T) {
	s := newShow(t, 2)
	s.cfg.MonitorInterval = time.Millisecond
	p := s.start(t.Context())
	logged := func(want string) {
		t.Helper()
		for begin := time.Now(); !strings.Contains(s.log.String(), want); time.Sleep(time.Millisecond) {
			if time.Since(begin) > patience {
				t.Fatalf("no %q in the log: %s", want, s.log.String())
			}
		}
	}
	p[1].halt()
	logged(`is stopped, others may wait for it" rank=1`)
	if err := syscall.Kill(p[1].pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	logged(`is no longer stopped" rank=1`)
	p[0].tell("exit 0")
	p[1].tell("exit 0")
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

// TestStoppedWorkerIsTheCause: the others have waited for it until they gave up.
func TestStoppedWorkerIsTheCause(t *testing.T) {
	s := newShow(t, 2)
	p := s.start(t.Context())
	p[0].halt()
	p[1].do("report because of 0")
	p[1].tell("exit 5")
	e := s.fails()
	if root := e.Root(); root.Rank != 0 || root.State == "" || e.ExitCode() != 5 {
		t.Errorf("exit code %d, root cause %+v", e.ExitCode(), root)
	}
}

func TestReportsSayWhatCameFirst(t *testing.T) {
	s := newShow(t, 3)
	p := s.start(t.Context())
	p[2].do("report because of 1")
	p[1].do("report out of memory")
	p[1].do("ignore")
	p[2].tell("exit 1") // the consequence ends first
	p[2].gone()
	p[1].tell("exit 6")
	e := s.fails()
	root := e.Root()
	if root.Rank != 1 || root.Error != "out of memory" || root.Stack != "a stack" {
		t.Errorf("root cause %+v", root)
	}
	if f := e.by(t, 2); !f.Consequence || f.By != 1 {
		t.Errorf("%+v", f)
	}
	if want := "(because of rank 1)"; !strings.Contains(e.Report(), want) {
		t.Errorf("no %q in\n%s", want, e.Report())
	}
}

// TestAllFail: a worker that has failed, too, may end by itself, and what it then says and its exit status are told.
func TestAllFail(t *testing.T) {
	defer func(d time.Duration) { hearing = d }(hearing)
	hearing = patience
	s := newShow(t, 3)
	p := s.start(t.Context())
	p[1].do("report no card")
	p[0].do("report no card")
	p[2].do("catch")
	p[0].tell("exit 1")
	p[2].hear() // after all that hear of it had a signal
	p[1].do("complain there is no card")
	p[1].tell("exit 3")
	p[2].tell("exit 0")
	e := s.fails()
	if root := e.Root(); root.Rank != 1 || root.ExitCode != 3 || root.Signal != "" || root.Tail != "there is no card" || e.ExitCode() != 3 {
		t.Errorf("exit code %d, root cause %+v", e.ExitCode(), root)
	}
}

// TestFailsWithoutAnEnd: the exit status is not that of the launcher's signal to the root cause.
func TestFailsWithoutAnEnd(t *testing.T) {
	s := newShow(t, 2)
	s.cfg.Grace = 10 * time.Millisecond
	p := s.start(t.Context())
	p[1].do("report no card")
	p[1].do("ignore")
	p[0].tell("exit 3")
	e := s.fails()
	if root := e.Root(); root.Rank != 1 || root.Error != "no card" || e.ExitCode() != 3 {
		t.Errorf("exit code %d, root cause %+v", e.ExitCode(), root)
	}
	if want := "did not end by itself, and was killed by the launcher's SIGKILL\n  error: no card"; !strings.Contains(e.Report(), want) {
		t.Errorf("no %q in\n%s", want, e.Report())
	}
}

// TestOldReportsDoNotExplain: what workers have lived with is not why they end.
func TestOldReportsDoNotExplain(t *testing.T) {
	s := newShow(t, 3)
	p := s.start(t.Context())
	for _, w := range p {
		w.do("recover out of memory, long ago")
	}
	if err := syscall.Kill(p[2].pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := s.fails()
	if root := e.Root(); root.Rank != 2 || root.Signal != "SIGKILL" || root.Error != root.ended() {
		t.Errorf("root cause %+v", root)
	}
	if f := e.by(t, 0); !f.Stopped || f.Error != "stopped by the launcher: killed by SIGTERM" {
		t.Errorf("%+v", f)
	}
	// Of a worker that ends by itself it is the best there is.
	s = newShow(t, 1)
	p = s.start(t.Context())
	p[0].do("recover no more data")
	p[0].tell("exit 1")
	if root := s.fails().Root(); root.Error != "no more data" {
		t.Errorf("%+v", root)
	}
}

func TestReportThatCannotBeRead(t *testing.T) {
	s := newShow(t, 1)
	p := s.start(t.Context())
	p[0].do("scribble")
	p[0].tell("exit 9")
	if root := s.fails().Root(); root.ExitCode != 9 || root.Error != "exit status 9" {
		t.Errorf("%+v", root)
	}
	if !strings.Contains(s.log.String(), "report cannot be read") {
		t.Errorf("log: %s", s.log.String())
	}
}

func TestWorkerIgnoresTheSignal(t *testing.T) {
	s := newShow(t, 2)
	s.cfg.Grace = 300 * time.Millisecond
	p := s.start(t.Context())
	p[0].do("ignore")
	p[1].tell("exit 1")
	if f := s.fails().by(t, 0); f.Signal != "SIGKILL" || !f.Stopped {
		t.Errorf("%+v", f)
	}
}

func TestEarlyEndIsNoFailure(t *testing.T) {
	s := newShow(t, 3)
	p := s.start(t.Context())
	p[1].tell("exit 0")
	p[1].gone()
	p[0].do("print still here")
	p[0].tell("exit 0")
	p[2].tell("exit 0")
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if got := s.stdout.String(); got != "[rank0]: still here\n" {
		t.Errorf("stdout: %q", got)
	}
}

func TestGrandchildrenEnd(t *testing.T) {
	for _, kind := range []string{"plain", "bare", "session", "holder"} {
		for name, order := range map[string]string{"after success": "exit 0", "after a failure": "exit 3"} {
			t.Run(kind+" "+name, func(t *testing.T) {
				s := newShow(t, 1)
				p := s.start(t.Context())
				p[0].do("start " + kind)
				child := s.stage.next(1)[0]
				child.do("ignore")
				p[0].tell(order)
				if err := s.end(); (err == nil) != (order == "exit 0") {
					t.Error(err)
				}
				child.gone()
			})
		}
	}
}

// TestOutputHeldFromOutside: what has escaped cannot be found, but it cannot hold the job up either.
func TestOutputHeldFromOutside(t *testing.T) {
	s := newShow(t, 1)
	p := s.start(t.Context())
	p[0].do("start escaped")
	child := s.stage.next(1)[0]
	p[0].do("print the last word")
	p[0].tell("exit 0")
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if got := s.stdout.String(); got != "the last word\n" {
		t.Errorf("stdout: %q", got)
	}
	for _, want := range []string{"still holds", "rank=0 stream=stdout", "rank=0 stream=stderr"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("no %q in the log: %s", want, s.log.String())
		}
	}
	child.tell("exit 0")
	child.gone()
}

// TestOutputThatDoesNotEnd: nor can what has escaped by printing on and on.
func TestOutputThatDoesNotEnd(t *testing.T) {
	s := newShow(t, 1)
	s.cfg.Stdout = io.Discard
	p := s.start(t.Context())
	p[0].do("start escaped")
	child := s.stage.next(1)[0]
	child.do("babble")
	p[0].tell("exit 0")
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(s.log.String(), errHeld.Error()) {
		t.Errorf("log: %s", s.log.String())
	}
	child.gone() // nobody reads the pipe any more
}

func TestRestarts(t *testing.T) {
	s := newShow(t, 2)
	s.cfg.MaxRestarts = 3
	tokens := map[string]bool{}
	ports := map[string]bool{}
	p := s.start(t.Context())
	for attempt := range 3 {
		for _, w := range p {
			if got := w.getenv("TORCHELASTIC_RESTART_COUNT"); got != string(rune('0'+attempt)) {
				t.Errorf("attempt %d: restart count %s", attempt, got)
			}
			tokens[w.getenv("TANDEM_TOKEN")] = true
			ports[w.getenv("MASTER_PORT")] = true
		}
		if attempt < 2 {
			p[attempt].tell("exit 1")
			p = s.stage.next(2)
		}
	}
	for _, w := range p {
		w.tell("exit 0")
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if len(tokens) != 3 || len(ports) != 1 {
		t.Errorf("tokens %v, ports %v: want a token an attempt, and one port", tokens, ports)
	}
	for _, want := range []string{"restart=1 of=3", "restart=2 of=3", "rank 0", "rank 1"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, s.log.String())
		}
	}
}

func TestRestartsAreUsedUp(t *testing.T) {
	s := newShow(t, 1)
	s.cfg.MaxRestarts = 1
	s.start(t.Context())[0].tell("exit 1")
	s.stage.next(1)[0].tell("exit 2")
	e := s.fails()
	if e.ExitCode() != 2 || e.Restarts != 1 || !strings.Contains(e.Report(), "again after 1 restart") {
		t.Errorf("exit code %d after %d restarts:\n%s", e.ExitCode(), e.Restarts, e.Report())
	}
}

func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := newShow(t, 2)
	s.cfg.MaxRestarts = 5
	p := s.start(ctx)
	p[0].do("catch")
	cancel(&SignalError{Signal: syscall.SIGHUP})
	if got := p[0].hear(); got != "hangup" {
		t.Errorf("rank 0 heard %q", got)
	}
	p[0].tell("exit 0")
	err := s.end()
	if got := new(SignalError); !errors.As(err, &got) || got.Signal != syscall.SIGHUP || got.ExitCode() != 129 {
		t.Errorf("the job ended with %v", err)
	}
}
