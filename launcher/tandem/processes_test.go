package main

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// procTree is a /proc whose machine has been up for 1000 seconds.
type procTree struct{ fstest.MapFS }

func newProc() procTree {
	return procTree{fstest.MapFS{
		"uptime":  {Data: []byte("1000.00 1234.56\n")},
		"loadavg": {Data: []byte("0.00\n")},
	}}
}

// add puts a process in: times are in seconds, memory in KiB, env is NAME=VALUE with blanks between them.
func (t procTree) add(pid, parent, uid, resident, cpu, started int, command, env string) {
	dir := fmt.Sprint(pid, "/")
	put := func(name, text string) { t.MapFS[dir+name] = &fstest.MapFile{Data: []byte(text)} }
	put("environ", strings.ReplaceAll(env, " ", "\x00")+"\x00")
	put("cmdline", strings.ReplaceAll(command, " ", "\x00")+"\x00")
	put("status", fmt.Sprintf("Name:\tx\nUmask:\t0022\nUid:\t%d\t%d\t%d\t%d\nVmPeak:\t1 kB\nVmRSS:\t%8d kB\n", uid, uid, uid, uid, resident))
	put("stat", fmt.Sprintf("%d (a) b c) S %d 1 1 0 -1 4194560 1 0 0 0 %d %d 0 0 20 0 1 0 %d 1 1 1\n", pid, parent, cpu*60, cpu*40, started*100))
}

func TestScan(t *testing.T) {
	proc := newProc()
	const job = "TANDEM_RUN_ID=night WORLD_SIZE=2 "
	proc.add(1, 0, 0, 1, 1, 0, "init", "")
	proc.add(50, 1, 7, 1, 1, 1, "tandem run train", "TANDEM_RUN_ID=day") // of a job, but no rank
	proc.add(60, 50, 7, 100, 10, 900, "sh train.sh", job+"RANK=1 CUDA_VISIBLE_DEVICES=GPU-b CUDA_DEVICE_LIMIT=8GiB")
	proc.add(61, 60, 7, 200, 20, 905, "train --epochs 3", job+"RANK=1 CUDA_VISIBLE_DEVICES=GPU-b")
	proc.add(62, 61, 7, 300, 30, 906, "loader", job+"RANK=1")
	proc.add(59, 1, 7, 5, 5, 950, "left behind", job+"RANK=1") // whose parent has ended
	proc.add(70, 50, 7, 400, 50, 901, "train\x1b[2J --epochs 3", job+"RANK=0")
	proc.add(80, 1, 8, 1, 1, 1, "train", job+"RANK=2")              // another user's
	proc.add(81, 1, 7, 1, 1, 1, "train", job+"RANK=x")              // no job of ours
	proc.add(82, 1, 7, 1, 1, 1, "train", "RANK=3")                  // of another launcher
	proc.add(83, 1, 7, 1, 1, 800, "old", "RANK=10 TANDEM_RUN_ID=a") // of another job
	proc.add(90, 1, 7, 1, 1, 1, "ending", job+"RANK=5")
	delete(proc.MapFS, "90/stat") // it ends while it is read

	proc.add(95, 50, 7, 6, 2, 990, "alone", "CUDA_DEVICE_LIMIT=25%")
	proc.add(96, 1, 7, 7, 3, 1, "tool", "")
	proc.add(97, 1, 8, 7, 3, 1, "tool", "") // another user's

	got, uptime, err := scan(proc, 7, map[int]bool{60: true, 95: true, 96: true, 97: true})
	if err != nil {
		t.Fatal(err)
	}
	if uptime != 1000*time.Second {
		t.Errorf("uptime %v", uptime)
	}
	want := []worker{
		{runID: "a", rank: 10, pid: 83, command: "old", pids: []int{83}, resident: 1 << 10, cpu: time.Second, started: 800 * time.Second},
		{runID: "night", rank: 0, pid: 70, command: "train?[2J --epochs 3", pids: []int{70}, resident: 400 << 10, cpu: 50 * time.Second, started: 901 * time.Second},
		{runID: "night", rank: 1, pid: 60, uuid: "GPU-b", cap: "8GiB", command: "sh train.sh", pids: []int{59, 60, 61, 62},
			resident: 605 << 10, cpu: 65 * time.Second, started: 900 * time.Second},
		{rank: noRank, pid: 95, cap: "25%", command: "alone", pids: []int{95}, resident: 6 << 10, cpu: 2 * time.Second, started: 990 * time.Second},
		{rank: noRank, pid: 96, command: "tool", pids: []int{96}, resident: 7 << 10, cpu: 3 * time.Second, started: time.Second},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(worker{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestScanOfWhatIsNoProc(t *testing.T) {
	if _, _, err := scan(fstest.MapFS{}, 7, nil); err == nil || !strings.Contains(err.Error(), "/proc, as Linux has it") {
		t.Errorf("error %v", err)
	}
	for _, damage := range []string{"5/stat", "5/status"} {
		proc := newProc()
		proc.add(5, 1, 7, 1, 1, 1, "train", "TANDEM_RUN_ID=night RANK=0")
		proc.MapFS[damage] = &fstest.MapFile{Data: []byte("Uid:\tx\n")}
		if _, _, err := scan(proc, 7, nil); err == nil || !strings.Contains(err.Error(), "process 5: stat") {
			t.Errorf("%s: error %v", damage, err)
		}
	}
}

// TestScanOfThisMachine reads what is there, whatever that is.
func TestScanOfThisMachine(t *testing.T) {
	proc := os.DirFS("/proc")
	if _, err := fs.Stat(proc, "uptime"); err != nil {
		t.Skip(err)
	}
	if _, uptime, err := scan(proc, os.Getuid(), nil); err != nil || uptime <= 0 {
		t.Errorf("uptime %v, %v", uptime, err)
	}
	p := process{}
	text, err := fs.ReadFile(proc, fmt.Sprintf("%d/stat", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.parseStat(string(text)); err != nil || p.parent != os.Getppid() || p.started <= 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

func FuzzParseStat(f *testing.F) {
	for _, text := range []string{"", ")", "1 (a) b) S 2 1 1 0 -1 4 1 0 0 0 1 2 0 0 20 0 1 0 99 1", "1 (a) S 2 x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p, q process
		err := p.parseStat(text)
		if again := q.parseStat("7 (any) name) " + text[strings.LastIndexByte(text, ')')+1:]); (err == nil) != (again == nil) || err == nil && p.cpu != q.cpu {
			t.Errorf("%q: %+v, %v; under another name %+v, %v", text, p, err, q, again)
		}
	})
}
