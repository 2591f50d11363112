package comm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/job"
)

// workerVariable says what this binary, started again, does as a rank.
const workerVariable = "TANDEM_COMM_TEST_WORKER"

// workers are what ranks do. What they say goes to the test line by line; the last line is the error they end with, as verdict words it.
var workers = map[string]func(c comm.Comm, say func(string)) error{
	// random makes calls that all ranks draw alike, and checks what they give.
	"random": func(c comm.Comm, _ func(string)) error {
		rng := rand.New(rand.NewPCG(5, uint64(c.Size())))
		for i := range 2000 {
			if err := randomCall(c, rng); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		return nil
	},
	// idle is a rank 1 that never comes.
	"idle": func(c comm.Comm, say func(string)) error {
		if c.Rank() == 1 {
			say("idle")
			select {}
		}
		return c.Barrier(context.Background())
	},
	// large makes calls of 256 MB without end.
	"large": func(c comm.Comm, say func(string)) error {
		buf := make([]float32, 64<<20)
		for {
			if err := c.AllReduce(context.Background(), buf); err != nil {
				return err
			}
			say("again")
		}
	},
	"mismatch": func(c comm.Comm, _ func(string)) error {
		buf := make([]float32, 9)
		if c.Rank() == 1 {
			return c.Broadcast(context.Background(), buf, 1)
		}
		return c.AllReduce(context.Background(), buf)
	},
	"abort": func(c comm.Comm, _ func(string)) error {
		if c.Rank() == 1 {
			c.Abort(fmt.Errorf("no card: %w", context.Canceled))
		}
		return c.Barrier(context.Background())
	},
}

// work is a rank in a process of its own.
func work(name string) (status int) {
	say := func(line string) { _, _ = fmt.Println(line) }
	place, err := job.Lookup(os.LookupEnv)
	if err == nil {
		err = rank(place, workers[name], say)
	}
	say(verdict(err))
	return 0
}

func rank(place *job.Place, f func(c comm.Comm, say func(string)) error, say func(string)) error {
	s, err := comm.Connect(context.Background(), place)
	if err != nil {
		return err
	}
	c, err := s.NewGroup(context.Background(), nil)
	if err != nil {
		return err
	}
	err = f(c, say)
	if err == nil {
		err = c.Barrier(context.Background()) // nobody leaves before all are done
	}
	return errors.Join(err, s.Close())
}

// verdict says which error of this package one is.
func verdict(err error) string {
	var broken *comm.BrokenError
	var timeout *comm.TimeoutError
	var mismatch *comm.MismatchError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &broken):
		return fmt.Sprintf("broken by %d, canceled %v: %v", broken.Rank, errors.Is(err, context.Canceled), err)
	case errors.As(err, &timeout):
		return fmt.Sprintf("timeout %v: %v", timeout.Missing, err)
	case errors.As(err, &mismatch):
		return fmt.Sprintf("mismatch of %d: %v", len(mismatch.Calls), err)
	}
	return "failed: " + err.Error()
}

// randomCall makes the next of a series of calls, with data that are small whole numbers, so that every order of sums gives the same.
func randomCall(c comm.Comm, rng *rand.Rand) error {
	ctx := context.Background()
	world := 1 + rng.IntN(c.Size())
	op, root, n, salt := comm.Op(rng.IntN(8)), rng.IntN(world), rng.IntN(100), rng.IntN(1000)
	switch rng.IntN(20) {
	case 0:
		n = rng.IntN(400_000)
	case 1, 2, 3:
		n = rng.IntN(20_000)
	}
	counts := make([]int, world)
	for r := range counts {
		counts[r] = rng.IntN(2*n/world + 1)
	}
	if c.Rank() >= world {
		return nil
	}
	sub, err := c.Sub(world)
	if err != nil {
		return err
	}
	me := c.Rank()
	value := func(r, i int) float32 { return float32((r*7 + i*3 + salt) % 11) }
	sum := func(i int) (s float32) {
		for r := range world {
			s += value(r, i)
		}
		return s
	}
	fill := func(r, n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = value(r, i)
		}
		return x
	}
	var got []float32
	want := func(i int) float32 { return value(me, i) }
	lo, hi := ir.ShareOf(n, me, world)
	buf := fill(me, n)
	switch op {
	case comm.OpBroadcast:
		err = sub.Broadcast(ctx, buf, root)
		got, want = buf, func(i int) float32 { return value(root, i) }
	case comm.OpReduce:
		err = sub.Reduce(ctx, buf, root)
		got = buf
		if me == root {
			want = sum
		}
	case comm.OpAllReduce:
		err = sub.AllReduce(ctx, buf)
		got, want = buf, sum
	case comm.OpReduceScatter:
		err = sub.ReduceScatter(ctx, buf)
		got, want = buf[lo:hi], func(i int) float32 { return sum(lo + i) }
	case comm.OpAllGather:
		err = sub.AllGather(ctx, buf)
		share := max(1, (n+world-1)/world)
		got, want = buf, func(i int) float32 { return value(i/share, i) }
	case comm.OpScatter, comm.OpGather:
		total, before := 0, 0
		for r, k := range counts {
			if r < me {
				before += k
			}
			total += k
		}
		if op == comm.OpScatter {
			got = make([]float32, counts[me])
			err = sub.Scatter(ctx, got, fill(root, total), counts, root)
			want = func(i int) float32 { return value(root, before+i) }
			break
		}
		whole := make([]float32, total)
		err = sub.Gather(ctx, whole, fill(me, counts[me]), counts, root)
		if me == root {
			for r, k := range counts {
				if part := whole[:k]; !slices.Equal(part, fill(r, k)) {
					return fmt.Errorf("gather of %v in %d: the part of rank %d is wrong", counts, world, r)
				}
				whole = whole[k:]
			}
		}
	case comm.OpBarrier:
		err = sub.Barrier(ctx)
	}
	if err != nil {
		return err
	}
	for i, g := range got {
		if w := want(i); g != w {
			return fmt.Errorf("%v of %d (%v) in %d: element %d is %g, want %g", op, n, counts, world, i, g, w)
		}
	}
	return nil
}

// process is a rank that a test has started.
type process struct {
	*exec.Cmd
	lines *bufio.Scanner
}

// spawn starts a job of this binary. What still runs when the test ends is killed.
func spawn(t *testing.T, world int, worker string, env ...string) []*process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*process, world)
	for r, p := range places(t, world) {
		cmd := exec.Command(exe)
		cmd.Env = slices.Concat(os.Environ(), p.Environ(), env, []string{workerVariable + "=" + worker, "GOMAXPROCS=1"})
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all[r] = &process{cmd, bufio.NewScanner(out)}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait() // an exit status says nothing new
		})
	}
	return all
}

// await reads a process's lines up to one.
func (p *process) await(t *testing.T, line string) {
	t.Helper()
	for p.lines.Scan() {
		if p.lines.Text() == line {
			return
		}
	}
	t.Fatalf("a rank ended before it said %q", line)
}

// last is what a process says last.
func (p *process) last() string {
	last := ""
	for p.lines.Scan() {
		last = p.lines.Text()
	}
	return last
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func TestProcesses(t *testing.T) {
	for _, world := range []int{2, 4, 7} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			for r, p := range spawn(t, world, "random") {
				if got := p.last(); got != "done" {
					t.Errorf("rank %d: %s", r, got)
				}
			}
		})
	}
}

// A rank is killed while others wait for it, and in calls that take a while: they learn at once who it was.
func TestProcessKilled(t *testing.T) {
	for _, tt := range []struct {
		worker, ready string
		ranks         []int // that say so
	}{
		{"idle", "idle", []int{1}},
		{"large", "again", []int{1}},
	} {
		t.Run(tt.worker, func(t *testing.T) {
			all := spawn(t, 3, tt.worker)
			for _, r := range tt.ranks {
				all[r].await(t, tt.ready)
			}
			all[1].signal(t, os.Kill)
			want := fmt.Sprintf("comm: group was broken by rank 1: rank 1 (process %d on ", all[1].Process.Pid)
			for _, r := range []int{0, 2} {
				if got := all[r].last(); !strings.HasPrefix(got, "broken by 1,") || !strings.Contains(got, want) {
					t.Errorf("rank %d: %s; want %s", r, got, want)
				}
			}
		})
	}
}

// A rank is stopped: those that wait give up when the limit has passed, and say for whom they waited.
func TestProcessStopped(t *testing.T) {
	for _, tt := range []struct {
		worker, ready string
		ranks         []int
	}{
		{"idle", "idle", []int{1}},
		{"large", "again", []int{1}},
	} {
		t.Run(tt.worker, func(t *testing.T) {
			all := spawn(t, 3, tt.worker, "TANDEM_TIMEOUT=2s")
			for _, r := range tt.ranks {
				all[r].await(t, tt.ready)
			}
			all[1].signal(t, syscall.SIGSTOP)
			for _, r := range []int{0, 2} {
				if got := all[r].last(); !strings.HasPrefix(got, "timeout [1]: ") {
					t.Errorf("rank %d: %s; want a timeout that names rank 1", r, got)
				}
			}
			if tt.worker == "large" { // it goes on, and finds that the others did not wait
				all[1].signal(t, syscall.SIGCONT)
				if got := all[1].last(); !strings.HasPrefix(got, "timeout [1]: ") && !strings.HasPrefix(got, "broken by") {
					t.Errorf("rank 1, in the end: %s; want that the group broke", got)
				}
			}
		})
	}
}

func TestProcessErrors(t *testing.T) {
	for worker, want := range map[string]string{
		"mismatch": "mismatch of 3: comm: ranks have called different collectives: ranks 0, 2 called all_reduce of 9 elements in the group of 3; rank 1 called broadcast",
		"abort":    "broken by 1, canceled true: comm: group was broken by rank 1: no card: context canceled",
	} {
		t.Run(worker, func(t *testing.T) {
			for r, p := range spawn(t, 3, worker) {
				if got := p.last(); !strings.HasPrefix(got, want) {
					t.Errorf("rank %d: %s; want %s", r, got, want)
				}
			}
		})
	}
}

// The memory of a group has no name that could be left behind.
func TestNothingInShm(t *testing.T) {
	before, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Skip("no /dev/shm: ", err)
	}
	group := comm.NewShared(t, 2, comm.Timeout(time.Minute))
	after, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	if len(after) > len(before) {
		t.Errorf("/dev/shm holds %v, and %v before", after, before)
	}
	for _, c := range group {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
