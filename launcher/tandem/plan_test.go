package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/cudaops/machine"
	"github.com/tandem-train/tandem/internal/job"
	"github.com/tandem-train/tandem/launcher"
)

// noVariables is an environment without any.
func noVariables(string) (string, bool) { return "", false }

// planned is the job of a command line, given without "worker", the program.
func planned(line string, s *surroundings) (launcher.Config, error) {
	o, err := parseRun(append(strings.Fields(line), "worker"), noVariables)
	if err != nil {
		return launcher.Config{}, err
	}
	return o.config(s)
}

// withCards are surroundings with visible cards of 16 GiB, by physical number in logical order, of four in all, and 8 CPUs.
func withCards(physical ...int) *surroundings {
	s := &surroundings{
		cpus:       8,
		visibility: cudaops.Visibility{Physical: 4, Cards: physical},
		topology:   func() (*topology, error) { return nil, errors.New("not asked for") },
	}
	for _, p := range physical {
		s.cards = append(s.cards, visibleCard{physical: p, uuid: fmt.Sprintf("GPU-%d", p), memory: 16 << 30, node: machine.Unknown})
	}
	return s
}

// workerLines are a job's workers, a line each: card, CPUs, and what is set of visible cards, caps and threads.
func workerLines(cfg launcher.Config) (lines []string) {
	for _, w := range cfg.Workers {
		env := map[string]string{}
		for _, v := range slices.Concat(cfg.Env, w.Env) {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
		line := w.Card
		if w.CPUs != nil {
			line += fmt.Sprint(" CPUs", w.CPUs)
		}
		for _, name := range []string{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_LIMIT"} {
			if value, set := env[name]; set {
				line += fmt.Sprintf(" %s=%s", strings.TrimPrefix(name, "CUDA_"), value)
			}
		}
		if env["OMP_NUM_THREADS"] != env["GOMAXPROCS"] {
			line += " and unequal threads"
		}
		lines = append(lines, strings.TrimSpace(line+" threads="+env["GOMAXPROCS"]))
	}
	return lines
}

func TestWorkers(t *testing.T) {
	none := withCards()
	none.visibility = cudaops.Visibility{}
	inherited := withCards(1, 0)
	inherited.environ = []string{"CUDA_VISIBLE_DEVICES=1,0", "CUDA_DEVICE_LIMIT=0:8GiB"}
	inherited.cards[0].cap = &memoryCap{8 << 30, "8GiB"}
	onHost := withCards()
	onHost.environ = []string{"CUDA_VISIBLE_DEVICES=-1"}
	for _, tt := range []struct {
		line string
		s    *surroundings
		want []string
	}{
		{"", none, []string{"threads=8"}},
		{"--nproc-per-node 3", none, []string{"threads=2", "threads=2", "threads=2"}},
		{"--nproc-per-node 16", none, slices.Repeat([]string{"threads=1"}, 16)},
		{"--nproc-per-node auto", none, slices.Repeat([]string{"threads=1"}, 8)},
		{"--nproc-per-node cpu", none, slices.Repeat([]string{"threads=1"}, 8)},
		{"", onHost, []string{"VISIBLE_DEVICES=-1 threads=8"}},
		{"", withCards(3, 2), []string{
			"physical card 3 VISIBLE_DEVICES=GPU-3 threads=4",
			"physical card 2 VISIBLE_DEVICES=GPU-2 threads=4",
		}},
		{"--nproc-per-node gpu", withCards(3), []string{"physical card 3 VISIBLE_DEVICES=GPU-3 threads=8"}},
		{"--nproc-per-node auto", withCards(3), []string{"physical card 3 VISIBLE_DEVICES=GPU-3 threads=8"}},
		{"--nproc-per-node 1", withCards(3, 2), []string{"physical card 3 VISIBLE_DEVICES=GPU-3 threads=8"}},
		{"--devices 0,2", withCards(3, 2, 0), []string{
			"physical card 0 VISIBLE_DEVICES=GPU-0 threads=4",
			"physical card 2 VISIBLE_DEVICES=GPU-2 threads=4",
		}},
		{"--nproc-per-node cpu", withCards(0), slices.Repeat([]string{"VISIBLE_DEVICES= threads=1"}, 8)},
		{"--procs-per-device 2", withCards(0, 1), []string{
			"physical card 0 VISIBLE_DEVICES=GPU-0 threads=2", "physical card 0 VISIBLE_DEVICES=GPU-0 threads=2",
			"physical card 1 VISIBLE_DEVICES=GPU-1 threads=2", "physical card 1 VISIBLE_DEVICES=GPU-1 threads=2",
		}},
		{"--procs-per-device 2 --nproc-per-node 3 --memory-fraction 0.5", withCards(0, 1), []string{
			"physical card 0 VISIBLE_DEVICES=GPU-0 DEVICE_LIMIT=8GiB from --memory-fraction 0.5 threads=2", "physical card 0 VISIBLE_DEVICES=GPU-0 DEVICE_LIMIT=8GiB from --memory-fraction 0.5 threads=2",
			"physical card 1 VISIBLE_DEVICES=GPU-1 DEVICE_LIMIT=8GiB from --memory-fraction 0.5 threads=2",
		}},
		// A cap of the environment follows its card, and the smallest cap counts.
		{"", inherited, []string{
			"physical card 1 VISIBLE_DEVICES=GPU-1 DEVICE_LIMIT=8GiB threads=4",
			"physical card 0 VISIBLE_DEVICES=GPU-0 threads=4",
		}},
		{"--devices 0", inherited, []string{"physical card 0 VISIBLE_DEVICES=GPU-0 threads=8"}},
		{"--devices 1 --memory-limit 9GiB", inherited, []string{"physical card 1 VISIBLE_DEVICES=GPU-1 DEVICE_LIMIT=8GiB threads=8"}},
		{"--devices 1 --memory-limit 1.5GiB", inherited, []string{"physical card 1 VISIBLE_DEVICES=GPU-1 DEVICE_LIMIT=1536MiB from --memory-limit 1536MiB threads=8"}},
		{"--devices 1 --memory-limit 1000B --memory-fraction 0.1", inherited, []string{"physical card 1 VISIBLE_DEVICES=GPU-1 DEVICE_LIMIT=1000B from --memory-limit 1000B threads=8"}},
		{"--devices 0 --memory-limit 16GiB", inherited, []string{"physical card 0 VISIBLE_DEVICES=GPU-0 threads=8"}},
		{"--nproc-per-node cpu", inherited, slices.Repeat([]string{"VISIBLE_DEVICES= threads=1"}, 8)},
	} {
		cfg, err := planned(tt.line, tt.s)
		if err != nil {
			t.Errorf("%q: %v", tt.line, err)
		} else if diff := cmp.Diff(tt.want, workerLines(cfg)); diff != "" {
			t.Errorf("%q: workers (-want +got):\n%s", tt.line, diff)
		}
	}
}

func TestThreadsThatAreSetStay(t *testing.T) {
	s := withCards()
	s.environ = []string{"GOMAXPROCS=3"}
	cfg, err := planned("", s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"OMP_NUM_THREADS=8"}, cfg.Workers[0].Env); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBoundWorkers: workers are bound near their cards, and share the threads of where they are.
func TestBoundWorkers(t *testing.T) {
	s := withCards(0, 1, 2)
	for i, node := range []int{1, 0, 1} {
		s.cards[i].node = node
	}
	s.topology = func() (*topology, error) { return twoNodes(t), nil }
	cfg, err := planned("--numa-binding node", s)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"physical card 0 CPUs[4 5 6 7] VISIBLE_DEVICES=GPU-0 threads=2",
		"physical card 1 CPUs[0 1 2 3] VISIBLE_DEVICES=GPU-1 threads=4",
		"physical card 2 CPUs[4 5 6 7] VISIBLE_DEVICES=GPU-2 threads=2",
	}
	if diff := cmp.Diff(want, workerLines(cfg)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := planned("--numa-binding exclusive --procs-per-device 2", s); err == nil || !strings.Contains(err.Error(), "--numa-binding exclusive: NUMA node 1 has 2 cores for 4 workers") {
		t.Errorf("more workers than cores: error %v", err)
	}
}

func TestNodes(t *testing.T) {
	slurm := &job.NodePlace{Node: 1, Nodes: 2, Addr: "gpu07", Port: 15321, RunID: "slurm-31.2", Source: "Slurm"}
	mpi := &job.NodePlace{Node: 1, Nodes: 2, Source: "Open MPI"}
	pod := &job.NodePlace{Node: 3, Source: "Kubernetes"}
	type place struct {
		Node, Nodes int
		Addr        string
		Port        int
		RunID       string
	}
	for _, tt := range []struct {
		line string
		by   *job.NodePlace
		want place
	}{
		{"", nil, place{0, 1, "", 0, ""}},
		{"--master-port 29501", nil, place{0, 1, "", 29501, ""}},
		{"--standalone --nnodes 1", nil, place{0, 1, "", 0, ""}},
		{"--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id night", nil, place{0, 1, "localhost", 0, "night"}},
		{"--nnodes 2 --node-rank 1 --master-addr node0", nil, place{1, 2, "node0", 29500, "node0-29500"}},
		{"--nnodes 2:2 --node-rank 0 --rdzv-endpoint [::1]:7 --rdzv-id night", nil, place{0, 2, "::1", 7, "night"}},
		{"", slurm, place{1, 2, "gpu07", 15321, "slurm-31.2"}},
		{"--master-addr 10.0.0.1 --master-port 7 --rdzv-id night", slurm, place{1, 2, "10.0.0.1", 7, "night"}},
		{"--node-rank 0", slurm, place{0, 2, "gpu07", 15321, "slurm-31.2"}},
		{"--nnodes 4", slurm, place{1, 4, "gpu07", 15321, "slurm-31.2"}},
		{"--master-addr node0", mpi, place{1, 2, "node0", 29500, "node0-29500"}},
		{"", pod, place{0, 1, "", 0, ""}},
		{"--nnodes 4 --master-addr train-0.train", pod, place{3, 4, "train-0.train", 29500, "train-0.train-29500"}},
	} {
		s := withCards(0)
		s.place = tt.by
		cfg, err := planned(tt.line, s)
		if err != nil {
			t.Errorf("%q: %v", tt.line, err)
			continue
		}
		if diff := cmp.Diff(tt.want, place{cfg.Node, cfg.Nodes, cfg.Addr, cfg.Port, cfg.RunID}); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.line, diff)
		}
	}
	for _, tt := range []struct {
		line string
		by   *job.NodePlace
		says string
	}{
		{"", mpi, "2 nodes: say where the first is: --master-addr HOST"},
		{"--nnodes 2 --master-addr h", pod, "--nnodes 2: this is node 3 for Kubernetes, and there are nodes 0 to 1"},
		{"--max-restarts 1", slurm, "--max-restarts 1: "},
	} {
		s := withCards(0)
		s.place = tt.by
		var usage *usageError
		if _, err := planned(tt.line, s); !errors.As(err, &usage) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: error %v, want one of usage with %q", tt.line, err, tt.says)
		}
	}
}

// TestNeedsPlace: variables of a cluster are not even read where flags say all that they could.
func TestNeedsPlace(t *testing.T) {
	for line, want := range map[string]bool{
		"":                           true,
		"--nnodes 2":                 true,
		"--nnodes 2 --node-rank 0":   true,
		"--nnodes 2 --master-addr h": true,
		"--nnodes 2 --node-rank 0 --master-addr h":   false,
		"--nnodes 2 --node-rank 0 --rdzv-endpoint h": false,
		"--nnodes 1":   false,
		"--standalone": false,
	} {
		o, err := parseRun(append(strings.Fields(line), "worker"), noVariables)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		} else if got := o.needsPlace(); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
}

// TestConfig: what else is said goes to the launcher as it is.
func TestConfig(t *testing.T) {
	o, err := parseRun(strings.Fields("--max-restarts 2 --monitor-interval 0.5 --grace 90s --log-dir logs -r 1 -t 0:3,2:1 --local-ranks-filter 0,2 --role trainer --nproc-per-node 3 train --epochs 1 -- x"), noVariables)
	if err != nil {
		t.Fatal(err)
	}
	s := withCards()
	s.environ = []string{"HOME=/root", "OMP_NUM_THREADS=1", "GOMAXPROCS=1"}
	got, err := o.config(s)
	if err != nil {
		t.Fatal(err)
	}
	want := launcher.Config{
		Args: []string{"--epochs", "1", "--", "x"}, Env: s.environ, Workers: make([]launcher.Worker, 3), Nodes: 1, Role: "trainer",
		MaxRestarts: 2, MonitorInterval: 500 * time.Millisecond, Grace: 90 * time.Second, LogDir: "logs",
		Redirects: launcher.StreamsByRank{All: launcher.Stdout},
		Tee:       launcher.StreamsByRank{Ranks: map[int]launcher.Streams{0: launcher.Both, 2: launcher.Stdout}},
		Filter:    []int{0, 2},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(launcher.Config{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if o.program != "train" {
		t.Errorf("program %q", o.program)
	}
}

// TestVariables: every flag of every command can be set by its variable, and is documented by that rule.
func TestVariables(t *testing.T) {
	values := map[string]string{
		"nproc-per-node": "2", "devices": "1,0", "procs-per-device": "2", "memory-fraction": "0.5", "memory-limit": "8GiB", "numa-binding": "node",
		"nnodes": "2", "node-rank": "1", "master-addr": "h", "master-port": "7", "standalone": "true", "rdzv-endpoint": "h:7", "rdzv-id": "night",
		"rdzv-backend": "c10d", "max-restarts": "2", "grace": "2", "monitor-interval": "2", "json-errors": "f", "log-dir": "d", "redirects": "1",
		"tee": "0:3", "local-ranks-filter": "0", "role": "r", "json": "true", "once": "true", "interval": "2",
	}
	for _, c := range commands() {
		fs := c.flags()
		names := map[string]string{}
		for name, value := range values {
			names["TANDEM_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = value
		}
		err := fs.parse(nil, func(name string) (string, bool) { v, ok := names[name]; return v, ok })
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, g := range fs.groups {
			g.flags.VisitAll(func(f *pflag.Flag) {
				if want, ok := values[f.Name]; !ok || f.Value.String() != want {
					t.Errorf("%s: --%s is %q, want %q", c.name, f.Name, f.Value, want)
				}
			})
		}
	}
	// A flag wins over its variable.
	o, err := parseRun([]string{"--role", "a", "worker"}, func(name string) (string, bool) {
		if name == "TANDEM_ROLE" {
			return "b", true
		}
		return "", false
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.role != "a" {
		t.Errorf("role %q, want the flag's", o.role)
	}
}

func TestValues(t *testing.T) {
	for flag, values := range map[string]map[string]string{ // flag: value: how it is written back
		"nproc-per-node":     {"4": "4", "auto": "auto"},
		"devices":            {"3, 2": "3,2"},
		"memory-limit":       {"8GiB": "8GiB", "0.5gib": "512MiB", "1KB": "1000B", "2KiB": "2KiB"},
		"rdzv-endpoint":      {"h": "h", "h:7": "h:7", "h:0": "h", "[::1]:7": "[::1]:7", "::1": "::1", "[::1]": "::1"},
		"redirects":          {"0": "", "3": "3", "1:2,0:1": "0:1,1:2"},
		"grace":              {"30": "30", "0.1": "0.1", "500ms": "0.5", "1e3": "1000"},
		"nnodes":             {"2": "2", "2:2": "2"},
		"local-ranks-filter": {"1,0": "1,0"},
	} {
		for value, want := range values {
			fs := new(runOptions).flagSet()
			if err := fs.Set(flag, value); err != nil {
				t.Errorf("--%s %s: %v", flag, value, err)
			} else if got := fs.Lookup(flag).Value.String(); got != want {
				t.Errorf("--%s %s is %q, want %q", flag, value, got, want)
			}
		}
	}
	for flag, values := range map[string][]string{
		"nproc-per-node":     {"", "-1", "4097", "GPU", "1.5"},
		"devices":            {"", "0,", "0;1", "+1", "65536"},
		"memory-limit":       {"", "8", "-1GiB", "0KiB"},
		"rdzv-endpoint":      {"", ":7", "h:", "h:x", "h:70000", "[::1]7", "a b:7", "h/:7"},
		"redirects":          {"", "4", "-1", "0:4", "0:1,0:1", "x:1", "0:1,", "1,2"},
		"grace":              {"", "0", "-1", "NaN", "Inf", "1e300", "x"},
		"nnodes":             {"", "0", "-1", "1:2", "x", "2:x"},
		"local-ranks-filter": {"", "-1", "0,0"},
	} {
		for _, value := range values {
			if err := new(runOptions).flagSet().Set(flag, value); err == nil {
				t.Errorf("--%s %q: no error", flag, value)
			}
		}
	}
}

// FuzzFlags: whatever a value is, it is refused with a reason, or written back as a value that means the same.
func FuzzFlags(f *testing.F) {
	flags := []string{"nproc-per-node", "devices", "memory-limit", "rdzv-endpoint", "redirects", "grace", "nnodes", "local-ranks-filter", "numa-binding"}
	for i := range flags {
		for _, value := range []string{"3", "0:1,1:3", "[::1]:7", "8GiB", "0.1", "a,b"} {
			f.Add(i, value)
		}
	}
	f.Fuzz(func(t *testing.T, i int, value string) {
		if i < 0 || i >= len(flags) {
			return
		}
		fs := new(runOptions).flagSet()
		if err := fs.Set(flags[i], value); err != nil {
			if reason(err).Error() == "" {
				t.Errorf("--%s %q: an error without words", flags[i], value)
			}
			return
		}
		first := fs.Lookup(flags[i]).Value.String()
		if first == "" {
			return // as if it had not been given
		}
		if err := fs.Set(flags[i], first); err != nil {
			t.Errorf("--%s %q: written back as %q: %v", flags[i], value, first, err)
		} else if second := fs.Lookup(flags[i]).Value.String(); second != first {
			t.Errorf("--%s %q: %q, then %q", flags[i], value, first, second)
		}
	})
}

// TestLook: the surroundings are those of package cudaops.
func TestLook(t *testing.T) {
	cudaopstest.SetupEnv(t, map[string]string{"TANDEM_SIM_CARDS": "3x2GiB", "CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_LIMIT": "0:1GiB"})
	o, err := parseRun([]string{"--numa-binding", "node", "worker"}, noVariables)
	if err != nil {
		t.Fatal(err)
	}
	s, err := o.look()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range s.cards {
		line := fmt.Sprint(c.physical, " ", c.memory>>20, " ", c.node)
		if c.cap != nil {
			line += " " + c.cap.text
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([]string{"2 2048 -1 1GiB", "0 2048 -1"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s.visibility.Physical != 3 || s.cpus < 1 || s.place != nil {
		t.Errorf("%+v", s)
	}
}
