//go:build linux

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-train/tandem/internal/job"
)

func TestProgramsThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		program string
		is      error
		want    string
	}{
		"missing file":    {filepath.Join(dir, "none"), fs.ErrNotExist, "none: no such file or directory"},
		"missing command": {"no-such-command-anywhere", exec.ErrNotFound, "no-such-command-anywhere: executable file not found in $PATH"},
		"no program":      {plain, fs.ErrPermission, "plain: permission denied"},
		"a folder":        {dir, fs.ErrPermission, "cannot start rank 0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShow(t, 2)
			s.cfg.Program = tc.program
			s.cfg.MaxRestarts = 3
			go func() { s.result <- Run(t.Context(), s.cfg) }()
			err := s.end()
			var start *StartError
			if !errors.As(err, &start) || start.Rank != 0 || !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v", err)
			}
			if s.log.String() != "" {
				t.Errorf("log: %s", s.log.String())
			}
		})
	}
}

// TestOneThatCannotStartStopsTheRest: the second worker asks for a processor that is not there.
func TestOneThatCannotStartStopsTheRest(t *testing.T) {
	s := newShow(t, 2)
	s.cfg.Workers[1].CPUs = []int{maxCPU - 1}
	go func() { s.result <- Run(t.Context(), s.cfg) }()
	err := s.end()
	var start *StartError
	if !errors.As(err, &start) || start.Rank != 1 || !strings.Contains(err.Error(), "CPUs [1023]") {
		t.Errorf("%v", err)
	}
}

func TestPortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nothing is sent
	s := newShow(t, 2)
	s.cfg.Port = l.Addr().(*net.TCPAddr).Port
	err = Run(t.Context(), s.cfg)
	var address *AddressError
	if !errors.As(err, &address) || !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatal(err)
	}
	want := fmt.Sprintf("launcher: rank 0 cannot listen at %s: address already in use: choose another port, or 0 for a free one, or end what listens there", l.Addr())
	if err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestAddressIsElsewhere(t *testing.T) {
	s := newShow(t, 1)
	s.cfg.Addr = "192.0.2.1" // reserved for documentation: nobody has it
	err := Run(t.Context(), s.cfg)
	if !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "192.0.2.1:0") {
		t.Error(err)
	}
}

func TestContextHasEndedBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newShow(t, 1)
	if err := Run(ctx, s.cfg); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(s.stage.come) > 0 {
		t.Error("a worker was started")
	}
}

func TestWhatWorkersSee(t *testing.T) {
	t.Setenv(job.ListenVariable, "77") // this test might itself be a worker
	t.Setenv(job.ErrorFileVariable, "/elsewhere")
	t.Setenv("RANK", "5")
	s := newShow(t, 2)
	s.cfg.Role = "trainer"
	s.cfg.MaxRestarts = 2
	s.cfg.Workers[1].Env = []string{"CUDA_VISIBLE_DEVICES=GPU-1", "MASTER_ADDR=localhost"}
	p := s.start(t.Context())
	var port string
	for rank, w := range p {
		env := w.environ()
		seen := map[string]string{}
		for _, v := range env {
			name, value, _ := strings.Cut(v, "=")
			if _, twice := seen[name]; twice {
				t.Errorf("rank %d: %s comes twice", rank, name)
			}
			seen[name] = value
		}
		for name, want := range map[string]string{
			"RANK": strconv.Itoa(rank), "LOCAL_RANK": strconv.Itoa(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
			"GROUP_WORLD_SIZE": "1", "ROLE_NAME": "trainer", "TORCHELASTIC_MAX_RESTARTS": "2", job.RunVariable: s.cfg.RunID,
			"MASTER_ADDR": []string{"127.0.0.1", "localhost"}[rank], "CUDA_VISIBLE_DEVICES": []string{os.Getenv("CUDA_VISIBLE_DEVICES"), "GPU-1"}[rank],
			job.ListenVariable: []string{"3", ""}[rank],
		} {
			if seen[name] != want {
				t.Errorf("rank %d: %s=%q, want %q", rank, name, seen[name], want)
			}
		}
		if file := seen[job.ErrorFileVariable]; file == "" || file == "/elsewhere" {
			t.Errorf("rank %d: error file %q", rank, file)
		}
		port = seen["MASTER_PORT"]
	}
	// Whoever connects to the port reaches rank 0.
	p[0].tell("accept")
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // all has been sent
	fmt.Fprintln(conn, "from rank 1")
	if got := p[0].hear(); got != "from rank 1" {
		t.Errorf("rank 0 heard %q", got)
	}
	for _, w := range p {
		w.tell("exit 0")
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestWorkersRunOnTheirCPUs(t *testing.T) {
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		t.Fatal(err)
	}
	first := -1
	for cpu := range maxCPU {
		if mine.IsSet(cpu) {
			first = cpu
			break
		}
	}
	s := newShow(t, 2)
	s.cfg.Workers[0].CPUs = []int{first}
	p := s.start(t.Context())
	if got := p[0].do("affinity"); got != strconv.Itoa(first) {
		t.Errorf("rank 0 runs on %q, want %d", got, first)
	}
	all := p[1].do("affinity")
	if mine.Count() > 1 && all == strconv.Itoa(first) {
		t.Error("rank 1 has rank 0's processors")
	}
	p[0].tell("exit 0")
	p[1].tell("exit 0")
	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestToken(t *testing.T) {
	one, two, other := &Config{Nodes: 1, RunID: "a"}, &Config{Nodes: 2, RunID: "a"}, &Config{Nodes: 2, RunID: "b"}
	if first := token(one); first == token(one) {
		t.Error("two attempts have the same token")
	}
	if derived := token(two); derived != token(two) || derived == token(other) {
		t.Error("the token of several nodes does not follow from the name")
	}
	t.Setenv(job.TokenVariable, "secret")
	if token(two) != "secret" || token(one) == "secret" {
		t.Errorf("%s is for several nodes", job.TokenVariable)
	}
}

// TestTwoNodes has both launchers on this host.
func TestTwoNodes(t *testing.T) {
	nodes := [2]*show{newShow(t, 2), newShow(t, 2)}
	nodes[1].stage = nodes[0].stage
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	for i, s := range nodes {
		s.cfg.Env = append(os.Environ(), roleVariable+"=worker", stageVariable+"="+nodes[0].stage.addr)
		s.cfg.Node, s.cfg.Nodes, s.cfg.Addr, s.cfg.Port, s.cfg.RunID, s.cfg.LogDir = i, 2, "127.0.0.1", port, nodes[0].cfg.RunID, logs
		go func() { s.result <- Run(t.Context(), s.cfg) }()
	}
	p := nodes[0].stage.next(4)
	secret := p[0].getenv(job.TokenVariable)
	for rank, w := range p {
		if w.rank != rank || w.getenv(job.TokenVariable) != secret || w.getenv("GROUP_RANK") != strconv.Itoa(rank/2) || w.getenv("WORLD_SIZE") != "4" {
			t.Errorf("rank %d: %v", w.rank, w.environ())
		}
		if _, err := os.Stat(filepath.Join(logs, nodes[0].cfg.RunID, "node_"+strconv.Itoa(rank/2), "attempt_0", strconv.Itoa(rank%2), "stdout.log")); err != nil {
			t.Error(err)
		}
		w.do("print here")
	}
	p[3].tell("exit 3")
	if root := nodes[1].failsAlone().Root(); root.Rank != 3 || root.LocalRank != 1 {
		t.Errorf("%+v", root)
	}
	p[0].tell("exit 0")
	p[1].tell("exit 0")
	if err := nodes[0].end(); err != nil {
		t.Error(err)
	}
	if got := nodes[1].stdout.String(); !strings.Contains(got, "[rank3]: here\n") {
		t.Errorf("node 1 printed %q", got)
	}
}

// failsAlone is fails for one of two launchers, the other of which runs on.
func (s *show) failsAlone() *JobError {
	s.t.Helper()
	var failed *JobError
	if err := <-s.result; !errors.As(err, &failed) {
		s.t.Fatalf("the job ended with %v, want a *JobError", err)
	}
	return failed
}
