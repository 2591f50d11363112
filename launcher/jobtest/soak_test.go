package jobtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func listenSomewhere(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // only its port counts
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

var readyLine = regexp.MustCompile(`rank (\d+) pid (\d+) ready`)

// TestRandomKills sends random signals to random processes of jobs at random moments. A job that was hit ends, soon and whole.
// TANDEM_TEST_LONG=1 makes it 200 jobs, TANDEM_SEED=n repeats one choice of signals and moments.
func TestRandomKills(t *testing.T) {
	jobs := 8
	if os.Getenv("TANDEM_TEST_LONG") != "" {
		jobs = 200
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TANDEM_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("TANDEM_SEED: %v", err)
		}
	}
	t.Logf("TANDEM_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGSTOP, syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGQUIT}
	for i := range jobs {
		world := 1 + rng.IntN(4)
		target := rng.IntN(world+1) - 1 // -1: the launcher
		sig := signals[rng.IntN(len(signals))]
		if target < 0 && sig == syscall.SIGSTOP {
			sig = syscall.SIGKILL // a launcher that is stopped waits for SIGCONT, as it should
		}
		delay := time.Duration(rng.ExpFloat64() * float64(30*time.Millisecond))
		early := rng.IntN(3) == 0 // before the ranks have joined
		feed := []string{"scatter", "shard"}[rng.IntN(2)]
		strategy := []string{"gather", "allreduce", "sharded"}[rng.IntN(3)]
		name := fmt.Sprintf("%d: %v to rank %d of %d after %v, early %t, %s, %s", i, sig, target, world, delay, early, feed, strategy)
		ok := t.Run(fmt.Sprint(i), func(t *testing.T) {
			var once sync.Once
			var aimed sync.WaitGroup
			pids := map[int]int{}
			lines := func(j *job, line string) {
				if m := readyLine.FindStringSubmatch(line); m != nil {
					rank, _ := strconv.Atoi(m[1])
					pids[rank], _ = strconv.Atoi(m[2])
				}
				hit := early && strings.HasSuffix(line, "ready") || strings.HasSuffix(line, "stepped")
				if !hit || target >= 0 && pids[target] == 0 {
					return
				}
				pid := pids[target]
				once.Do(func() {
					aimed.Add(1)
					time.AfterFunc(delay, func() { // the moment is part of what is drawn
						defer aimed.Done()
						if target < 0 {
							pid = j.cmd.Process.Pid
						}
						_ = syscall.Kill(pid, sig) // it may have ended already
					})
				})
			}
			flags := []string{"--nproc-per-node", strconv.Itoa(world), "--grace", "3s"}
			j := start(t, variables{"TANDEM_TIMEOUT=2s"}, lines, flags, "--steps", "100000000", "--feed", feed, "--strategy", strategy)
			if world == 1 && sig == syscall.SIGSTOP {
				// Nobody waits for the only rank: it goes on when it is told to.
				time.AfterFunc(3*time.Second, func() { j.signal(syscall.SIGTERM) })
			}
			e := j.wait()
			aimed.Wait()
			if e.code == 0 {
				t.Errorf("%s: the job ended well", name)
			}
			if t.Failed() {
				t.Logf("%s\nstderr:\n%.4000s", name, e.stderr)
			}
		})
		if !ok {
			return
		}
	}
}
