//go:build linux

package launcher

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-train/tandem/internal/job"
)

// Workers of these tests are puppets: this test binary started again. A puppet connects to the test's stage, does what the test tells
// it, says when it has done it, and its connection ends with it. So tests wait for what happens, and never for time to pass.

const stageVariable = "TANDEM_TEST_STAGE"

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// stage is where a test's puppets come to.
type stage struct {
	t    *testing.T
	addr string
	come chan *puppet
}

// puppet is the test's end of a puppet.
type puppet struct {
	t    *testing.T
	role string // "worker", or the kind of a grandchild
	rank int
	pid  int
	conn net.Conn
	in   *bufio.Reader
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "stage") // t.TempDir's names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	addr := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, addr: addr, come: make(chan *puppet, 64)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p := &puppet{t: t, conn: conn, in: bufio.NewReader(conn)}
			if _, err := fmt.Fscanf(p.in, "%s %d %d\n", &p.role, &p.rank, &p.pid); err == nil {
				s.come <- p
			}
		}
	})
	t.Cleanup(func() {
		err := l.Close()
		wg.Wait()
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// next waits for n puppets, and gives them by rank.
func (s *stage) next(n int) []*puppet {
	s.t.Helper()
	var got []*puppet
	for len(got) < n {
		select {
		case p := <-s.come:
			s.t.Cleanup(func() { _ = p.conn.Close() }) // it may be half gone with its puppet
			got = append(got, p)
		case <-time.After(patience):
			s.t.Fatalf("%d of %d puppets came", len(got), n)
		}
	}
	slices.SortStableFunc(got, func(a, b *puppet) int { return a.rank - b.rank })
	return got
}

// tell gives an order without waiting for it to be done.
func (p *puppet) tell(order string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.conn, order); err != nil {
		p.t.Fatalf("rank %d: %s: %v", p.rank, order, err)
	}
}

// do gives an order and waits for the answer.
func (p *puppet) do(order string) string {
	p.t.Helper()
	p.tell(order)
	return p.hear()
}

// wait gives the next read a limit.
func (p *puppet) wait() {
	if err := p.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
}

// hear waits for what the puppet says.
func (p *puppet) hear() string {
	p.t.Helper()
	p.wait()
	said, err := p.in.ReadString('\n')
	if err != nil {
		p.t.Fatalf("rank %d: %v", p.rank, err)
	}
	return strings.TrimSuffix(said, "\n")
}

// gone waits for the puppet's end.
func (p *puppet) gone() {
	p.t.Helper()
	p.wait()
	if s, err := p.in.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("%s of rank %d (pid %d) lives on: %q, %v", p.role, p.rank, p.pid, s, err)
	}
}

// environ is the puppet's environment.
func (p *puppet) environ() []string {
	p.t.Helper()
	var env []string
	if err := json.Unmarshal([]byte(p.do("environ")), &env); err != nil {
		p.t.Fatal(err)
	}
	return env
}

// getenv is the puppet's variable of a name.
func (p *puppet) getenv(name string) string {
	p.t.Helper()
	for _, v := range p.environ() {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// puppetMain is what a puppet does.
func puppetMain(role string) int {
	conn, err := net.Dial("unix", os.Getenv(stageVariable))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	fmt.Fprintf(conn, "%s %s %d\n", role, os.Getenv("RANK"), os.Getpid())
	orders := bufio.NewScanner(conn)
	for orders.Scan() {
		verb, rest, _ := strings.Cut(orders.Text(), " ")
		answer := "done"
		switch verb {
		case "exit":
			n, _ := strconv.Atoi(rest)
			return n
		case "panic":
			panic("at the " + rest)
		case "report":
			place, err := job.Lookup(os.LookupEnv)
			if err == nil {
				f := job.Failure{Error: rest, Stack: "a stack", By: -1}
				if by, ok := strings.CutPrefix(rest, "because of "); ok {
					f.Consequence = true
					f.By, _ = strconv.Atoi(by)
				}
				err = place.Report(f)
			}
			if err != nil {
				answer = err.Error()
			}
		case "recover": // from a failure that was reported an hour ago
			text, err := json.Marshal(job.Failure{Error: rest, Time: time.Now().Add(-time.Hour), By: -1})
			if err == nil {
				err = os.WriteFile(os.Getenv(job.ErrorFileVariable), text, 0o600)
			}
			if err != nil {
				answer = err.Error()
			}
		case "scribble":
			if err := os.WriteFile(os.Getenv(job.ErrorFileVariable), []byte("{"), 0o600); err != nil {
				answer = err.Error()
			}
		case "babble":
			go func() {
				for {
					fmt.Println("and so on")
				}
			}()
		case "print":
			fmt.Println(rest)
		case "complain":
			fmt.Fprintln(os.Stderr, rest)
		case "lines":
			n, _ := strconv.Atoi(rest)
			for i := range n {
				fmt.Printf("line %d of rank %s: %s\n", i, os.Getenv("RANK"), strings.Repeat("x", i%100))
			}
		case "flood":
			n, _ := strconv.Atoi(rest)
			block := bytes.Repeat([]byte("y"), 1<<20)
			for range n {
				if _, err := os.Stdout.Write(block); err != nil {
					answer = err.Error()
				}
			}
		case "ignore":
			signal.Ignore(syscall.SIGTERM)
		case "catch": // the next signal is told, and changes nothing
			got := make(chan os.Signal, 1)
			signal.Notify(got, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
			go func() {
				for sig := range got {
					fmt.Fprintln(conn, sig)
				}
			}()
		case "start":
			if err := startGrandchild(rest); err != nil {
				answer = err.Error()
			}
		case "environ":
			text, _ := json.Marshal(os.Environ())
			answer = string(text)
		case "affinity":
			status, _ := os.ReadFile("/proc/self/status")
			_, after, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
			answer, _, _ = strings.Cut(after, "\n")
		case "accept":
			answer = acceptOne()
		default:
			answer = "what is " + verb
		}
		fmt.Fprintln(conn, answer)
	}
	select {} // the test is over: what is tested has to end this process
}

// startGrandchild starts a puppet that is no worker: one that is "plain", one with a "session" of its own, one that is a "holder" of
// the worker's output in a session of its own, one that nothing of the job "escaped" to: such a holder without its environment, or one
// that is "bare": plain, and without it, too.
func startGrandchild(kind string) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+kind)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: kind != "plain" && kind != "bare"}
	if kind == "escaped" || kind == "bare" {
		cmd.Env = []string{roleVariable + "=" + kind, stageVariable + "=" + os.Getenv(stageVariable), "RANK=" + os.Getenv("RANK")}
	}
	if kind == "escaped" || kind == "holder" {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	return cmd.Start()
}

// acceptOne takes a connection at the inherited socket and gives what it says.
func acceptOne() string {
	place, err := job.Lookup(os.LookupEnv)
	if err != nil {
		return err.Error()
	}
	f := os.NewFile(uintptr(place.ListenFD), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return err.Error()
	}
	defer l.Close() //nolint:errcheck // the process ends soon
	conn, err := l.Accept()
	if err != nil {
		return err.Error()
	}
	defer conn.Close() //nolint:errcheck // it was only read
	said, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(said)
}

// show is a job of puppets under test.
type show struct {
	t      *testing.T
	stage  *stage
	cfg    Config
	stdout safeBuffer
	stderr safeBuffer
	log    safeBuffer
	result chan error
}

// newShow prepares a job of n puppets.
func newShow(t *testing.T, n int) *show {
	t.Helper()
	s := &show{t: t, stage: newStage(t), result: make(chan error, 1)}
	s.cfg = Config{
		Program: testBinary(t), Workers: make([]Worker, n), RunID: "test" + randomHex(8), Grace: patience,
		Env:    append(os.Environ(), roleVariable+"=worker", stageVariable+"="+s.stage.addr),
		Stdout: &s.stdout, Stderr: &s.stderr, Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
	}
	return s
}

// start starts the job and waits for its workers.
func (s *show) start(ctx context.Context) []*puppet {
	s.t.Helper()
	go func() { s.result <- Run(ctx, s.cfg) }()
	return s.stage.next(len(s.cfg.Workers))
}

// end waits for the job's end, and sees that nothing of it is left.
func (s *show) end() error {
	s.t.Helper()
	select {
	case err := <-s.result:
		noneLeft(s.t, job.RunVariable+"="+s.cfg.RunID)
		return err
	case <-time.After(patience):
		s.t.Fatalf("the job does not end; it printed:\n%s%s%s", s.stdout.String(), s.stderr.String(), s.log.String())
		return nil
	}
}

// fails is end for a job that fails.
func (s *show) fails() *JobError {
	s.t.Helper()
	err := s.end()
	var failed *JobError
	if !errors.As(err, &failed) {
		s.t.Fatalf("the job ended with %v, want a *JobError", err)
	}
	return failed
}

func testBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// withVariable lists the processes that have a variable of just this value.
func withVariable(t *testing.T, variable string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(dirs, func(dir string) bool {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		return err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), variable)
	})
}

// lookup finds a variable in an environment as /proc shows it.
func lookup(environ []byte, name string) (value string, set bool) {
	for v := range strings.SplitSeq(string(environ), "\x00") {
		if value, set = strings.CutPrefix(v, name+"="); set {
			return value, true
		}
	}
	return "", false
}

// noneLeft waits until no process has the variable: Run may return while the last one is on its way out.
func noneLeft(t *testing.T, variable string) {
	t.Helper()
	var left []string
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(time.Millisecond) {
		if left = withVariable(t, variable); len(left) == 0 {
			return
		}
	}
	t.Fatalf("processes are left: %v", left)
}

// safeBuffer is a buffer that several goroutines may use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
