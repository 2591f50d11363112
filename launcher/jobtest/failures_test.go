package jobtest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// four workers, a card each.
var four = []string{"--nproc-per-node", "4"}

func with(flags []string, more ...string) []string {
	return append(append([]string(nil), flags...), more...)
}

func TestAllIsWell(t *testing.T) {
	for _, feed := range []string{"scatter", "shard"} {
		e := run(t, nil, four, "--feed", feed)
		e.wants(t, 0)
		if n := strings.Count(e.stdout, "done, loss"); n != 4 {
			t.Errorf("%s: %d workers are done, want 4:\n%s", feed, n, e.stdout)
		}
	}
}

// TestWorkersThatFail: each fault on one rank ends the job with that rank's status, and the report begins with it.
func TestWorkersThatFail(t *testing.T) {
	quick := variables{"TANDEM_TIMEOUT=2s"}
	const forever = "100000000"
	for _, c := range []struct {
		name    string
		env     variables
		flags   []string
		faults  []string
		code    int
		reports []string
	}{
		{name: "exits", faults: []string{"exit@2:5"}, code: 3, reports: []string{`rank 2`, `exit (status|code) 3`, `the disk is full`}},
		{name: "exits before joining", faults: []string{"exit@1:-1"}, code: 3, reports: []string{`rank 1`, `3`, `the disk is full`}},
		{name: "panics", faults: []string{"panic@1:3"}, code: 2, reports: []string{`rank 1`, `index 7 of rank 1 is out of range`}},
		{name: "panics on rank 0", faults: []string{"panic@0:3"}, code: 2, reports: []string{`rank 0`, `index 7 of rank 0 is out of range`}},
		{name: "is killed", faults: []string{"kill@3:4"}, code: 137, reports: []string{`rank 3`, `SIGKILL`}},
		{name: "is killed on rank 0", faults: []string{"kill@0:4"}, code: 137, reports: []string{`rank 0`, `SIGKILL`}},
		{name: "is killed before joining", faults: []string{"kill@2:-1"}, code: 137, reports: []string{`rank 2`, `SIGKILL`}},
		{name: "is stopped", env: quick, faults: []string{"stop@2:4"}, code: 1, reports: []string{`rank 2 did not come within 2s`, `was stopped \(SIGSTOP\)`}},
		{name: "does not come", env: quick, flags: []string{"--grace", "1s"}, faults: []string{"hang@1:4"}, code: 1, reports: []string{`rank 1 did not come within 2s`}},
		{name: "does not join", env: quick, flags: []string{"--grace", "1s"}, faults: []string{"hang@3:-1"}, code: 1, reports: []string{`rank 3 did not come`}},
		{name: "returns early", faults: []string{"return@1:7"}, code: 1, reports: []string{`broken by rank 1: it has closed its trainer`}},
		{name: "goes past its cap", flags: []string{"--memory-limit", "64MiB"}, faults: []string{"oom@0:2"}, code: 1, reports: []string{`rank 0`, `CUDA out of memory`, `CUDA_DEVICE_LIMIT`}},
		{name: "ignores SIGTERM", flags: []string{"--grace", "500ms"}, faults: []string{"deaf@0:-1", "hang@0:3", "exit@1:3"}, code: 3, reports: []string{`rank 1`, `the disk is full`}},
		{name: "leaves a child", faults: []string{"child@1:2", "exit@1:4"}, code: 3, reports: []string{`rank 1`}},
		{name: "leaves a daemon", faults: []string{"daemon@1:2", "kill@2:4"}, code: 137, reports: []string{`rank 2`, `SIGKILL`}},
		{name: "builds another model", faults: []string{"model@2:0"}, code: 1, reports: []string{`rank 2`, `0\.weight`}},
		{name: "has another seed", faults: []string{"seed@1:0"}, code: 1, reports: []string{`rank 1`, `seed`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--steps", forever}
			for _, f := range c.faults {
				args = append(args, "--fault", f)
			}
			run(t, c.env, with(four, c.flags...), args...).wants(t, c.code, c.reports...)
		})
	}
}

// TestCheckpointThatFails: all ranks have the error of rank 0, which can't write, and which is the root cause.
func TestCheckpointThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "checkpoint")
	run(t, nil, four, "--checkpoint", path).wants(t, 1, `root cause: rank 0 `, `dp: save checkpoint: .*no such file`, `then:`)
}

// TestGoesOnAfterRestarts: a job whose workers are lost again and again comes to the checkpoint of one that loses none, to the bit.
func TestGoesOnAfterRestarts(t *testing.T) {
	for _, strategy := range []string{"gather", "sharded"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			var files [2][]byte
			for i, faults := range [][]string{nil, {"--fault", "kill@2:4", "--fault", "panic@0:4", "--fault", "exit@1:9", "--fault", "kill@0:19"}} {
				path := filepath.Join(t.TempDir(), "checkpoint")
				e := run(t, nil, with(four, "--max-restarts", "4"), with(faults, "--checkpoint", path, "--strategy", strategy)...)
				e.wants(t, 0)
				ready, first := strings.Count(e.stdout, "ready"), strings.Count(e.stdout, "stepped")
				if ready != 4*(1+len(faults)/2) || first != 4 {
					t.Errorf("%d workers have trained, %d of them from the first step on", ready, first)
				}
				var err error
				if files[i], err = os.ReadFile(path); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(files[0], files[1]) {
				t.Error("the checkpoints differ")
			}
		})
	}
}

// TestWorkersThatLeaveSomething end well, and what they started ends with them.
func TestWorkersThatLeaveSomething(t *testing.T) {
	for _, kind := range []string{"child", "daemon"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			run(t, nil, four, "--fault", kind+"@2:1").wants(t, 0)
		})
	}
}

// TestOutOfMemoryIsCaught by the worker, which trains on.
func TestOutOfMemoryIsCaught(t *testing.T) {
	run(t, nil, with(four, "--memory-limit", "64MiB"), "--fault", "survived@1:2").wants(t, 0)
}

// TestFlood: a hundred megabytes without a newline beside other ranks' lines.
func TestFlood(t *testing.T) {
	dir := t.TempDir()
	e := run(t, nil, with(four, "--log-dir", dir, "--tee", "3"), "--fault", "flood@1:2")
	e.wants(t, 0)
	for _, rank := range []string{"0", "2", "3"} {
		if !strings.Contains(e.stdout, "\n[rank"+rank+"]: rank "+rank+" done, loss") {
			t.Errorf("the last line of rank %s is not there as a whole", rank)
		}
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*", "attempt_0", "1", "stdout.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("log files of rank 1: %v, %v", logs, err)
	}
	log, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "x"); n != 100<<20 {
		t.Errorf("rank 1's log has %d of its %d bytes", n, 100<<20)
	}
	if !strings.HasPrefix(string(log), "rank 1 pid ") || !strings.Contains(string(log), "\nrank 1 stepped\n") || !strings.Contains(string(log[len(log)-100:]), "rank 1 done, loss") {
		t.Error("rank 1's log lacks the lines around")
	}
}

// onceStepped calls f when the first worker has done a step.
func onceStepped(f func(j *job)) func(j *job, line string) {
	var once sync.Once
	return func(j *job, line string) {
		if strings.HasSuffix(line, "stepped") {
			once.Do(func() { f(j) })
		}
	}
}

// TestLauncherGetsSignals: the launcher passes them on and ends by them.
func TestLauncherGetsSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			j := start(t, nil, onceStepped(func(j *job) { j.signal(sig) }), with(four, "--grace", "5s"),
				"--steps", "100000000", "--fault", "child@1:0", "--fault", "daemon@2:0")
			if e := j.wait(); e.code != 128+int(sig) {
				t.Errorf("exit status %d, want %d; stderr:\n%s", e.code, 128+int(sig), e.stderr)
			}
		})
	}
}

// TestRestart: the group is started again as a whole, as often as it may be.
func TestRestart(t *testing.T) {
	e := run(t, nil, with(four, "--max-restarts", "2"), "--fault", "exit@2:5")
	e.wants(t, 3, `restart`, `restart`, `rank 2`)
	if n := strings.Count(e.stdout, "ready"); n != 12 {
		t.Errorf("%d workers have trained, want 4 three times", n)
	}
}

func TestPortIsTaken(t *testing.T) {
	l := listenSomewhere(t)
	run(t, nil, with(four, "--master-addr", "127.0.0.1", "--master-port", l)).wants(t, 1, `127\.0\.0\.1:`+l, `in use`)
}

func TestProgramsThatDoNotStart(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(text, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.Mkdir(broken, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"go.mod": "module broken\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() { undefinedThing() }\n"} {
		if err := os.WriteFile(filepath.Join(broken, name), []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		program, dir string
		code         int
		says         string
	}{
		{program: "./nowhere", code: 127, says: "nowhere"},
		{program: "no-such-command-anywhere", code: 127, says: "no-such-command-anywhere"},
		{program: text, code: 126, says: "notes.txt"},
		{program: ".", dir: broken, code: 1, says: "undefinedThing"},
	} {
		cmd := exec.Command(tandem, "run", "--nproc-per-node", "2", c.program)
		cmd.Dir = dir
		if c.dir != "" {
			cmd.Dir = c.dir
			cmd.Args[len(cmd.Args)-1] = "./"
		}
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: exit status %d, want %d and %q:\n%s", c.program, code, c.code, c.says, out)
		}
	}
}

// TestSharedMemoryFileSystemIsFull: what processes share does not lie there.
func TestSharedMemoryFileSystemIsFull(t *testing.T) {
	if out, err := exec.Command("unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm").CombinedOutput(); err != nil {
		t.Skipf("this user can't have a /dev/shm of its own: %v: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const script = `mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero >/dev/shm/full && ! (echo x >/dev/shm/more) 2>/dev/null && exec "$@"`
	cmd := exec.Command("unshare", "-Urm", "sh", "-c", script, "sh", tandem, "run", "--nproc-per-node", "4", self)
	cmd.Env = append(os.Environ(), trainerVariable+"=1", "TANDEM_SIM_CARDS=4x1GiB")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "done, loss") != 4 {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestReportForPrograms is the same as that for people.
func TestReportForPrograms(t *testing.T) {
	path := filepath.Join(t.TempDir(), "errors.json")
	run(t, nil, with(four, "--json-errors", path), "--fault", "exit@2:5").wants(t, 3)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Failures []struct {
			Rank     int    `json:"rank"`
			ExitCode int    `json:"exit_code"`
			Tail     string `json:"stderr_tail"`
		} `json:"failures"`
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if len(report.Failures) == 0 || report.Failures[0].Rank != 2 || report.Failures[0].ExitCode != 3 || !strings.Contains(report.Failures[0].Tail, "the disk is full") {
		t.Errorf("reported:\n%s", text)
	}
}
