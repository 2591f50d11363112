package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"tandem": main, "worker": work})
}

// leakChecked fails tests that leave goroutines behind.
type leakChecked struct{ *testing.M }

func (m leakChecked) Run() int {
	code := m.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// work is a worker that does what its arguments say, one after the other:
//
//	env NAME...     print its rank and these variables
//	exit RANK N     end with status N, if it is that rank
//	wait            print "ready" and wait for a signal
func work() {
	rank, args := os.Getenv("RANK"), os.Args[1:]
	next := func() string {
		if len(args) == 0 {
			fmt.Fprintln(os.Stderr, "worker: an argument is missing")
			os.Exit(99)
		}
		arg := args[0]
		args = args[1:]
		return arg
	}
	for len(args) > 0 {
		switch what := next(); what {
		case "env":
			line := "rank " + rank
			for len(args) > 0 {
				name := next()
				if value, set := os.LookupEnv(name); set {
					line += fmt.Sprintf(" %s=%q", name, value)
				} else {
					line += fmt.Sprintf(" no %s", name)
				}
			}
			fmt.Println(line)
		case "exit":
			who, code := next(), next()
			if n, err := strconv.Atoi(code); err == nil && who == rank {
				fmt.Fprintln(os.Stderr, "worker: as told")
				os.Exit(n)
			}
		case "wait":
			arrived := make(chan os.Signal, 1)
			signal.Notify(arrived, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
			fmt.Println("ready")
			<-arrived
			os.Exit(1)
		default:
			fmt.Fprintf(os.Stderr, "worker: %s?\n", what)
			os.Exit(99)
		}
	}
}

var update = flag.Bool("update", false, "rewrite what the scripts compare with, such as the help")

// TestScripts runs the command in processes of its own. After a change of the help: go test ./launcher/tandem -run Scripts -update
func TestScripts(t *testing.T) {
	caches, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(caches))
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", "script"),
		UpdateScripts: *update,
		Setup: func(e *testscript.Env) error {
			for _, v := range e.Vars { // nothing that the machine of the test has set for us
				if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "TANDEM_") || strings.HasPrefix(name, "CUDA_") {
					return fmt.Errorf("%s is set", name)
				}
			}
			e.Setenv("GOCACHE", lines[0])
			e.Setenv("GOMODCACHE", lines[1])
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "jobs" {
				return runtime.GOOS == "linux", nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": checkStatus},
	})
}

// checkStatus is the script command `status N command...`: the command must end with exit status N.
func checkStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d; stderr:\n%s", got, want, ts.ReadFile("stderr"))
	}
}

// TestSignals: a signal goes to the workers, and then ends the command, too.
func TestSignals(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("jobs run on Linux only")
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		cmd := exec.Command("tandem", "run", "--nproc-per-node", "2", "worker", "wait")
		cmd.Dir = t.TempDir()
		var notes strings.Builder
		cmd.Stderr = &notes
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ready := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasSuffix(lines.Text(), "ready") {
				ready++
			}
			if ready == 2 {
				if err := cmd.Process.Signal(sig); err != nil {
					t.Error(err)
				}
				ready = 0 // once
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) {
			t.Fatalf("%v: ended with %v; stderr:\n%s", sig, err, &notes)
		}
		status := exit.Sys().(syscall.WaitStatus)
		if !status.Signaled() || status.Signal() != sig || status.CoreDump() {
			t.Errorf("%v: ended with %v; stderr:\n%s", sig, exit, &notes)
		}
		if strings.Contains(notes.String(), "goroutine ") {
			t.Errorf("%v: stderr:\n%s", sig, &notes)
		}
	}
}

// TestStdoutIsFull: what was asked for and can't be printed is an error.
func TestStdoutIsFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range []string{"help", "help run", "run --help", "devices", "devices --json", "top --once", "version", "completion bash"} {
		if err := run(t.Context(), strings.Fields(args), full, io.Discard); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("tandem %s: %v, want %v", args, err, syscall.ENOSPC)
		}
	}
}
