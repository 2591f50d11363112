package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-train/tandem/internal/job"
)

// worker is a rank of a job that runs on this machine: its first process, and those that it has started. A process that uses a card and
// is of no job is a worker by itself.
type worker struct {
	runID   string
	rank    int    // noRank: of no job
	pid     int    // of the first process
	uuid    string // of its card, as CUDA_VISIBLE_DEVICES has it; "" for none
	cap     string // as CUDA_DEVICE_LIMIT has it; "" for none
	command string // of the first process

	pids     []int // of all processes
	resident int64 // bytes of memory
	cpu      time.Duration
	started  time.Duration // of the first process, since the machine's start
}

// noRank stands for the rank of a process that is of no job.
const noRank = -1

// process is what /proc tells of a process.
type process struct {
	pid, parent int
	uid         int
	resident    int64
	cpu         time.Duration
	started     time.Duration
	command     string
	env         map[string]string // those variables that matter here
}

// clockTick is the unit of times in /proc: the kernel gives user programs 100 a second on all of Go's platforms.
const clockTick = time.Second / 100

// scan lists the workers of a user in a /proc, with those processes that are on cards, and says how long the machine has been up.
func scan(proc fs.FS, uid int, onCards map[int]bool) ([]worker, time.Duration, error) {
	uptime, err := readUptime(proc)
	if err != nil {
		return nil, 0, fmt.Errorf("processes are listed from /proc, as Linux has it: %w", err)
	}
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, 0, fmt.Errorf("processes: %w", err)
	}
	processes := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // no process
		}
		p, err := readProcess(proc, pid, onCards[pid])
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ESRCH):
			continue // it has ended, or is another user's
		case err != nil:
			return nil, 0, fmt.Errorf("process %d: %w", pid, err)
		}
		if p.uid == uid && (p.inJob() || onCards[pid]) {
			processes[pid] = p
		}
	}
	return workers(processes), uptime, nil
}

// inJob is whether the process is a worker of a job, or of what one has started.
func (p *process) inJob() bool { return p.env["RANK"] != "" && p.env[job.RunVariable] != "" }

// workers puts together the processes of each rank. The first is the one that no other of its rank has started.
func workers(processes map[int]process) []worker {
	type key struct {
		runID, rank string
		pid         int // of a process that is of no job
	}
	keyOf := func(p process) key {
		if !p.inJob() {
			return key{pid: p.pid}
		}
		return key{runID: p.env[job.RunVariable], rank: p.env["RANK"]}
	}
	byKey := map[key]*worker{}
	for _, p := range processes {
		k, rank := keyOf(p), noRank
		if p.inJob() {
			var err error
			if rank, err = strconv.Atoi(k.rank); err != nil {
				continue // no job of ours
			}
		}
		w := byKey[k]
		if w == nil {
			w = &worker{runID: k.runID, rank: rank}
			byKey[k] = w
		}
		w.pids = append(w.pids, p.pid)
		w.resident += p.resident
		w.cpu += p.cpu
		parent, known := processes[p.parent]
		if inside := known && keyOf(parent) == k; !inside && (w.pid == 0 || p.started < w.started || p.started == w.started && p.pid < w.pid) {
			w.pid, w.started, w.command = p.pid, p.started, p.command
			w.uuid, w.cap = p.env["CUDA_VISIBLE_DEVICES"], p.env["CUDA_DEVICE_LIMIT"]
		}
	}
	var all []worker
	for _, w := range byKey {
		slices.Sort(w.pids)
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b worker) int {
		if (a.rank == noRank) != (b.rank == noRank) {
			return b.rank - a.rank // jobs first
		}
		return cmp.Or(strings.Compare(a.runID, b.runID), a.rank-b.rank, a.pid-b.pid)
	})
	return all
}

func readUptime(proc fs.FS) (time.Duration, error) {
	text, err := fs.ReadFile(proc, "uptime")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	return time.ParseDuration(first + "s")
}

// readProcess reads what /proc tells of a process: of one that is not wanted only as far as to see that it is of no job.
func readProcess(proc fs.FS, pid int, wanted bool) (process, error) {
	p := process{pid: pid, env: map[string]string{}}
	read := func(name string) ([]byte, error) { return fs.ReadFile(proc, strconv.Itoa(pid)+"/"+name) }
	environ, err := read("environ")
	if err != nil {
		return p, err
	}
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		name, value, _ := strings.Cut(string(v), "=")
		switch name {
		case "RANK", job.RunVariable, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_LIMIT":
			p.env[name] = value
		}
	}
	if len(p.env) == 0 && !wanted {
		return p, nil
	}
	status, err := read("status")
	if err != nil {
		return p, err
	}
	if err := p.parseStatus(string(status)); err != nil {
		return p, err
	}
	stat, err := read("stat")
	if err != nil {
		return p, err
	}
	if err := p.parseStat(string(stat)); err != nil {
		return p, err
	}
	command, err := read("cmdline")
	if err != nil {
		return p, err
	}
	p.command = printable(strings.ReplaceAll(strings.TrimRight(string(command), "\x00"), "\x00", " "))
	return p, nil
}

// parseStatus reads user and memory from the lines of a status file. A process that is ending has no memory.
func (p *process) parseStatus(text string) error {
	p.uid = -1
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 || name != "Uid" && name != "VmRSS" {
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return fmt.Errorf("status: %s: %w", name, err)
		}
		switch name {
		case "Uid":
			p.uid = int(n)
		case "VmRSS":
			p.resident = n << 10
		}
	}
	return nil
}

// parseStat reads the parent and the times of a stat file: numbers with blanks between them, behind the name, which is in parentheses
// and may hold anything. The state, behind it, is field 3.
func (p *process) parseStat(text string) error {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	var parent, user, system, start int64
	for field, n := range map[int]*int64{4: &parent, 14: &user, 15: &system, 22: &start} {
		if field-3 >= len(fields) {
			return fmt.Errorf("stat: %q has no field %d", text, field)
		}
		var err error
		if *n, err = strconv.ParseInt(fields[field-3], 10, 64); err != nil {
			return fmt.Errorf("stat: field %d: %w", field, err)
		}
	}
	p.parent, p.cpu, p.started = int(parent), time.Duration(user+system)*clockTick, time.Duration(start)*clockTick
	return nil
}

// printable is text without what would move a terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
