package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const trainerVariable = "TANDEM_JOBTEST_TRAINER"

// tandem is the command that is tested, built once.
var tandem string

func TestMain(m *testing.M) {
	if os.Getenv(trainerVariable) != "" {
		trainerMain()
		os.Exit(0)
	}
	os.Exit(build(m))
}

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "jobtest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system's temporary folder
	tandem = filepath.Join(dir, "tandem")
	if out, err := exec.Command("go", "build", "-o", tandem, "github.com/tandem-train/tandem/launcher/tandem").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build tandem: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// limit is far more than any job of these tests takes: one that reaches it hangs.
const limit = 2 * time.Minute

// job is a running tandem run.
type job struct {
	t      *testing.T
	id     string
	cmd    *exec.Cmd
	stdout *output
	stderr *output
	kill   *time.Timer
	hung   bool
}

// output keeps what a process has printed.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	line  []byte
	lines func(line string)
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	for _, b := range p {
		if b != '\n' {
			o.line = append(o.line, b)
			continue
		}
		if o.lines != nil {
			o.lines(string(o.line))
		}
		o.line = o.line[:0]
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// variables are environment variables of a job beside this test's own.
type variables []string

// start starts tandem run with the test's trainer. lines, where it is not nil, gets every line that workers print.
func start(t *testing.T, env variables, lines func(j *job, line string), flags []string, trainerFlags ...string) *job {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	j := &job{t: t, id: fmt.Sprintf("%s-%d", strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()), time.Now().UnixNano()), stdout: new(output), stderr: new(output)}
	if lines != nil {
		j.stdout.lines = func(line string) { lines(j, line) }
	}
	args := append([]string{"run", "--rdzv-id", j.id}, flags...)
	args = append(append(args, self), trainerFlags...)
	j.cmd = exec.Command(tandem, args...)
	j.cmd.Env = append(os.Environ(), append([]string{trainerVariable + "=1", "TANDEM_SIM_CARDS=4x1GiB", "TANDEM_TIMEOUT=60s"}, env...)...)
	j.cmd.Stdout, j.cmd.Stderr = j.stdout, j.stderr
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	j.cmd.WaitDelay = 10 * time.Second // a process that outlives the launcher must not hold this test
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j.kill = time.AfterFunc(limit, func() {
		j.hung = true
		j.signal(syscall.SIGQUIT)
		j.signal(syscall.SIGKILL)
	})
	return j
}

func (j *job) signal(sig syscall.Signal) {
	if err := j.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		j.t.Error(err)
	}
}

// ended is how a job ended.
type ended struct {
	code           int // 128 + signal for one that ended by a signal
	stdout, stderr string
}

// wait waits for the job's end and sees that nothing is left of it.
func (j *job) wait() ended {
	j.t.Helper()
	err := j.cmd.Wait()
	j.kill.Stop()
	if j.hung {
		j.t.Errorf("the job hung")
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		j.t.Errorf("%v", err)
	}
	e := ended{stdout: j.stdout.String(), stderr: j.stderr.String()}
	if status, ok := j.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.code = 128 + int(status.Signal())
	} else {
		e.code = j.cmd.ProcessState.ExitCode()
	}
	j.nothingLeft()
	return e
}

// nothingLeft sees that no process of the job runs and nothing lies in shared memory's file system. A launcher that was killed has left
// that to others, who need a moment.
func (j *job) nothingLeft() {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		left := processesOf(j.id)
		if len(left) == 0 {
			break
		}
		select {
		case <-look.C:
			continue
		case <-ctx.Done():
		}
		j.t.Errorf("5 seconds later these still run: %s", strings.Join(left, "; "))
		for _, p := range left {
			if pid, err := strconv.Atoi(strings.Fields(p)[0]); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it is gone, or this test has failed anyway
			}
		}
		break
	}
	files, err := filepath.Glob("/dev/shm/*tandem*")
	if err != nil || len(files) > 0 {
		j.t.Errorf("in /dev/shm: %v, %v", files, err)
	}
}

// processesOf lists the processes that have a job's id in their environment, the guard included.
func processesOf(id string) []string {
	var left []string
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		panic(err)
	}
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil {
			continue // gone, or another user's
		}
		if !bytes.Contains(env, []byte("TANDEM_RUN_ID="+id+"\x00")) {
			continue
		}
		dir := filepath.Dir(file)
		state, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		cmd, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmd) == 0 {
			continue // a zombie has none
		}
		fields := strings.Fields(string(state[bytes.LastIndexByte(state, ')')+1:]))
		left = append(left, fmt.Sprintf("%s %s (%s)", filepath.Base(dir), bytes.ReplaceAll(cmd, []byte{0}, []byte(" ")), fields[0]))
	}
	return left
}

// run runs a job to its end.
func run(t *testing.T, env variables, flags []string, trainerFlags ...string) ended {
	t.Helper()
	return start(t, env, nil, flags, trainerFlags...).wait()
}

// wants checks how a job ended, and that the report has texts in this order.
func (e ended) wants(t *testing.T, code int, texts ...string) {
	t.Helper()
	if e.code != code {
		t.Errorf("exit status %d, want %d", e.code, code)
	}
	rest := e.stderr
	for _, text := range texts {
		at := regexp.MustCompile(text).FindStringIndex(rest)
		if at == nil {
			t.Errorf("stderr has no %q where it should", text)
			continue
		}
		rest = rest[at[1]:]
	}
	if t.Failed() {
		t.Logf("stdout:\n%.4000s", e.stdout)
		t.Logf("stderr:\n%.8000s", e.stderr)
	}
}
