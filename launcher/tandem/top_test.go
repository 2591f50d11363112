package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/cudaops/machine"
)

// busy is a machine with a card that NVML knows and a simulated one, with a worker on each and one on the host.
func busy() (machine.Machine, []worker) {
	m := machine.Machine{Cards: []machine.Card{
		{Physical: 0, Logical: -1, Properties: cudaops.Properties{Name: "Fast Card", UUID: "GPU-a", TotalMemory: 80 << 30}, MemoryUsed: 5 << 30, Utilization: 40,
			Processes: []cudaops.ProcessMemory{{PID: 60, Bytes: 2 << 30}, {PID: 61, Bytes: 1 << 30}, {PID: 99, Bytes: 1 << 30}, {PID: 62, Bytes: machine.Unknown}},
			Limits:    map[int]int64{61: 4 << 30, 62: 6 << 30, 99: 1 << 30}},
		{Physical: 1, Logical: 0, Properties: cudaops.Properties{Name: "Tandem Simulated Card", UUID: "GPU-b", TotalMemory: 16 << 30, Simulated: true},
			MemoryUsed: machine.Unknown, Utilization: machine.Unknown},
	}}
	return m, []worker{
		{runID: "night", rank: 0, pid: 60, uuid: "GPU-a", cap: "8GiB", command: "train", pids: []int{60, 61, 62}, resident: 3 << 30, cpu: 30 * time.Second, started: 940 * time.Second},
		{runID: "night", rank: 1, pid: 70, uuid: "GPU-b", cap: "2GiB", command: "train", pids: []int{70}, resident: 1 << 30, cpu: 120 * time.Second, started: 940 * time.Second},
		{runID: "other", rank: 0, pid: 80, command: "serve", pids: []int{80}, started: 1000 * time.Second},
	}
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestViewForPeople(t *testing.T) {
	m, workers := busy()
	v := newView(m, workers, 1000*time.Second, view{}, noon)
	const want = `CARD  LOGICAL  NAME                   UTIL  MEMORY USED  MEMORY
0     -        Fast Card              40%   5.00 GiB     80.00 GiB
1     0        Tandem Simulated Card  -     -            16.00 GiB

JOB    RANK  PID  CARD  CAP       CARD MEMORY  CPU%  MEMORY    COMMAND
night  0     60   0     4.00 GiB  3.00 GiB     50    3.00 GiB  train
night  1     70   1     2GiB      -            200   1.00 GiB  train
other  0     80   -     -         -            0     0 B       serve
`
	if diff := cmp.Diff(want, v.text()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestViewOfAnInterval: with a view before, CPU time is that since then.
func TestViewOfAnInterval(t *testing.T) {
	m, workers := busy()
	before := newView(m, workers[:2], 1000*time.Second, view{}, noon)
	workers[0].cpu += 3 * time.Second
	v := newView(m, workers, 1002*time.Second, before, noon.Add(2*time.Second))
	var got []float64
	for _, p := range v.Processes {
		got = append(got, p.CPU)
	}
	if diff := cmp.Diff([]float64{150, 0, 0}, got); diff != "" {
		t.Errorf("CPU%% (-want +got):\n%s", diff)
	}
}

func TestViewAsJSON(t *testing.T) {
	m, workers := busy()
	var b bytes.Buffer
	if err := printLine(&b, newView(m, workers[:2], 1000*time.Second, view{}, noon)); err != nil {
		t.Fatal(err)
	}
	const want = `{"cards":[` +
		`{"physical":0,"logical":null,"uuid":"GPU-a","name":"Fast Card","utilization_percent":40,"memory_used_bytes":5368709120,"memory_bytes":85899345920},` +
		`{"physical":1,"logical":0,"uuid":"GPU-b","name":"Tandem Simulated Card","utilization_percent":null,"memory_used_bytes":null,"memory_bytes":17179869184}],` +
		`"processes":[` +
		`{"run_id":"night","rank":0,"pid":60,"card":0,"cap":"8GiB","cap_bytes":4294967296,"cpu_percent":50,"resident_bytes":3221225472,"card_memory_bytes":3221225472,"command":"train"},` +
		`{"run_id":"night","rank":1,"pid":70,"card":1,"cap":"2GiB","cap_bytes":null,"cpu_percent":200,"resident_bytes":1073741824,"card_memory_bytes":null,"command":"train"}]}` + "\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.Reset()
	none := newView(machine.Machine{NVML: errors.New("no driver")}, nil, 0, view{}, noon)
	if err := printLine(&b, none); err != nil || b.String() != `{"cards":[],"processes":[]}`+"\n" {
		t.Errorf("nothing: %s, %v", b.String(), err)
	}
	if text := none.text(); text != "No card is known: no driver.\n\nNo job of yours runs on this machine, nor any other process on its cards.\n" {
		t.Errorf("nothing: %q", text)
	}
}

// TestViewOfSeveralCards: a process that sees more cards than one is there with each that it uses.
func TestViewOfSeveralCards(t *testing.T) {
	m, _ := busy()
	m.Cards[1].Processes = []cudaops.ProcessMemory{{PID: 80, Bytes: 1 << 30}}
	m.Cards[0].Processes = append(m.Cards[0].Processes, cudaops.ProcessMemory{PID: 80, Bytes: 2 << 30})
	m.Cards[0].Limits[80] = 3 << 30
	v := newView(m, []worker{{rank: noRank, pid: 80, pids: []int{80}}}, time.Second, view{}, noon)
	var got []string
	for _, p := range v.Processes {
		got = append(got, fmt.Sprintf("%s %d: %s of %s", orDash(p.RunID, printable), *p.Card, sizeText(*p.CardMemory), p.capText()))
	}
	if diff := cmp.Diff([]string{"- 0: 2.00 GiB of 3.00 GiB", "- 1: 1.00 GiB of -"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFrame: what is drawn never leaves the terminal, and begins where the frame before began.
func TestFrame(t *testing.T) {
	m, workers := busy()
	v := newView(m, workers, 1000*time.Second, view{}, noon)
	text := string(frame(v, 20, 5))
	if !strings.HasPrefix(text, home+"tandem top  12:00:00") || !strings.HasSuffix(text, clearBelow) {
		t.Errorf("%q", text)
	}
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, home), clearBelow), "\r\n")
	if len(lines) != 5 || lines[4] != "" { // the cursor stays on the last one
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	for _, line := range lines[:4] {
		if cut := strings.TrimSuffix(line, clearLine); cut == line || len(cut) > 20 {
			t.Errorf("line %q", line)
		}
	}
	if unsized := string(frame(v, 0, 0)); unsized != string(frame(v, 80, 24)) {
		t.Errorf("a terminal of unknown size gets %q", unsized)
	}
}

// TestUseAgainstCap: this process, which is of no job, holds memory of a simulated card and has capped itself.
func TestUseAgainstCap(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "1,0")
	if _, err := takeView(view{}); err != nil {
		t.Skip(err)
	}
	if err := cudaops.SetPerProcessMemoryFraction(0.25, 0); err != nil { // physical card 1
		t.Fatal(err)
	}
	mem, err := cudaops.Alloc(0, 12<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(mem.Free(), cudaops.EmptyCache()); err != nil {
			t.Error(err)
		}
	}()
	v, err := takeView(view{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range v.Processes {
		if p.PID != os.Getpid() {
			continue
		}
		if got := fmt.Sprint(*p.Card, " ", p.capText(), " ", sizeText(*p.CardMemory), " ", p.Rank); got != "1 16.00 MiB 12.00 MiB <nil>" {
			t.Errorf("this process: %s", got)
		}
		return
	}
	t.Errorf("this process is not there:\n%s", v.text())
}

// TestTop looks again and again, until it is told to end.
func TestTop(t *testing.T) {
	cudaopstest.Setup(t, "2", "")
	if _, err := takeView(view{}); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"top", "--json", "--interval", "1ms"}, w, io.Discard)
		done <- errors.Join(err, w.Close())
	}()
	for d, n := json.NewDecoder(r), 0; ; n++ {
		var v view
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if len(v.Cards) != 2 {
			t.Errorf("%d cards: %+v", len(v.Cards), v)
		}
		if n == 2 {
			cancel()
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTopSeesAJob looks at workers that wait.
func TestTopSeesAJob(t *testing.T) {
	if _, err := takeView(view{}); err != nil {
		t.Skip(err)
	}
	cudaopstest.SetupEnv(t, map[string]string{"TANDEM_SIM_CARDS": "2", "CUDA_DEVICE_LIMIT": "1:8GiB"})
	cmd := exec.Command("tandem", "run", "--rdzv-id", "seen", "worker", "wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 2*len("[rank0]: ready\n"))
	if _, err := io.ReadFull(out, ready); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := run(t.Context(), []string{"top", "--once"}, &b, io.Discard); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`\nseen +0 +\d+ +0 +- .* wait\n`, `\nseen +1 +\d+ +1 +8GiB .* wait\n`} {
		if !regexp.MustCompile(want).MatchString(b.String()) {
			t.Errorf("%q is not in\n%s", want, &b)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the job did not end by the signal")
	}
}
