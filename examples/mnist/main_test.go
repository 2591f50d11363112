package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/launcher"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"mnist": main, "mnist-stopped": mainStopped})
}

// mainStopped is the command of which rank 0 alone is told to stop, before it begins.
func mainStopped() {
	signal.Ignore(syscall.SIGTERM) // by which the launcher ends the other rank when this one has ended
	ctx, cancel := context.WithCancel(context.Background())
	if os.Getenv("RANK") == "0" {
		cancel()
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
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

// TestScripts runs the command in processes of its own. The scripts find in $SMALL a part of MNIST, in $DAMAGED the same with a
// file that ends too early, in $INCOMPLETE without one.
func TestScripts(t *testing.T) {
	small, damaged, incomplete := smallMNIST(t, 2000), smallMNIST(t, 2000), smallMNIST(t, 2000)
	if err := os.Truncate(filepath.Join(damaged, "train-labels-idx1-ubyte"), 100); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(incomplete, "t10k-labels-idx1-ubyte")); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("SMALL", small)
			e.Setenv("DAMAGED", damaged)
			e.Setenv("INCOMPLETE", incomplete)
			return nil
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

// wholeMNIST is read once for all tests.
var wholeMNIST = sync.OnceValues(func() (sets [2]*digits, err error) {
	sets[0], sets[1], err = loadDigits("")
	return sets, err
})

// smallMNIST is a folder with the first training images and 500 test images: little to read and to test.
func smallMNIST(t *testing.T, trainImages int) string {
	t.Helper()
	whole, err := wholeMNIST()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, data []byte, dims ...uint32) {
		raw := append([]byte{0, 0, 8}, byte(len(dims)))
		for _, d := range dims {
			raw = binary.BigEndian.AppendUint32(raw, d)
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(raw, data...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []struct {
		name string
		set  *digits
		n    uint32
	}{{"train", whole[0], uint32(trainImages)}, {"t10k", whole[1], 500}} {
		write(part.name+"-images-idx3-ubyte", part.set.images[:part.n*imageSize], part.n, side, side)
		write(part.name+"-labels-idx1-ubyte", part.set.labels[:part.n], part.n)
	}
	return dir
}

// TestInterrupt sends Ctrl-C to a training process.
func TestInterrupt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	cmd := exec.Command("mnist", "--data", smallMNIST(t, 2000), "--epochs", "100000", "--report", path)
	cmd.Env = append(os.Environ(), "TANDEM_SIM_CARDS=2")
	notes, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for lines := bufio.NewScanner(notes); lines.Scan(); {
		if all.Len() == 0 { // training is under way
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
		fmt.Fprintln(&all, lines.Text())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != statusInterrupted {
		t.Fatalf("ended with %v, want exit status %d; stderr:\n%s", err, statusInterrupted, &all)
	}
	if !strings.Contains(all.String(), "interrupted after ") || strings.Contains(all.String(), "goroutine") {
		t.Errorf("stderr:\n%s", &all)
	}
	rep := readReport(t, path)
	if rep.Steps == 0 || rep.TrainLoss == nil || rep.TestAccuracy == nil {
		t.Errorf("reported %+v, want what was reached", rep)
	}
}

// TestInterruptAtStart: there is nothing to report but the cards and the parameters, which is a valid report.
func TestInterruptAtStart(t *testing.T) {
	cudaopstest.Setup(t, "2", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "run.json")
	var out, notes strings.Builder
	if code := run(ctx, []string{"--data", smallMNIST(t, 2000), "--report", path}, &out, &notes); code != statusInterrupted {
		t.Fatalf("exit status %d, want %d; stderr:\n%s", code, statusInterrupted, &notes)
	}
	rep := readReport(t, path)
	if rep.Steps != 0 || rep.TrainLoss != nil || rep.TestAccuracy != nil || rep.FirstStepSecs != nil || rep.ParametersL2 <= 0 {
		t.Errorf("reported %+v, want only initial parameters", rep)
	}
}

// TestInterruptOne: when one process of a job is told to stop, all do, after the same step.
func TestInterruptOne(t *testing.T) {
	for _, feed := range []string{"scatter", "shard"} {
		var out strings.Builder
		program, err := exec.LookPath("mnist-stopped")
		if err != nil {
			t.Fatal(err)
		}
		err = launcher.Run(t.Context(), launcher.Config{
			Program: program, Args: []string{"--data", smallMNIST(t, 2000), "--feed", feed},
			Workers: make([]launcher.Worker, 2), Stdout: &out, Stderr: &out,
		})
		var failed *launcher.JobError
		if !errors.As(err, &failed) || failed.ExitCode() != statusInterrupted {
			t.Errorf("--feed %s: %v, want exit status %d", feed, err, statusInterrupted)
		}
		for _, want := range []string{"[rank0]: mnist: interrupted after 0 of ", "[rank1]: mnist: interrupted after 0 of "} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("--feed %s: %q is not in\n%s", feed, want, &out)
			}
		}
	}
}
