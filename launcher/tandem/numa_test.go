package main

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// cpuTree is the kernel's folder of CPUs and nodes, from lines of CPU, socket, siblings, sharers of the last cache (or - for none),
// and from lists by node.
func cpuTree(cpus string, nodes ...string) fs.FS {
	tree := fstest.MapFS{}
	put := func(text, format string, args ...any) {
		tree[fmt.Sprintf(format, args...)] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	for line := range strings.Lines(cpus) {
		var cpu, socket, siblings, sharers string
		if n, _ := fmt.Sscan(line, &cpu, &socket, &siblings, &sharers); n == 0 {
			continue
		}
		put(socket, "cpu/cpu%s/topology/physical_package_id", cpu)
		put(siblings, "cpu/cpu%s/topology/thread_siblings_list", cpu)
		if sharers == "-" {
			continue
		}
		put("1", "cpu/cpu%s/cache/index0/level", cpu)
		put(cpu, "cpu/cpu%s/cache/index0/shared_cpu_list", cpu)
		put("3", "cpu/cpu%s/cache/index2/level", cpu)
		put(sharers, "cpu/cpu%s/cache/index2/shared_cpu_list", cpu)
	}
	for i, list := range nodes {
		put(list, "node/node%d/cpulist", i)
	}
	return tree
}

// twoNodes is one socket with two nodes of two cores, with two threads each.
func twoNodes(t *testing.T) *topology {
	t.Helper()
	top, err := readTopology(cpuTree(`
		0 0 0-1 0-3
		1 0 0-1 0-3
		2 0 2-3 0-3
		3 0 2-3 0-3
		4 0 4-5 4-5
		5 0 4-5 4-5
		6 0 6-7 6-7
		7 0 6-7 6-7`, "0-3", "4-7", ""), []int{0, 1, 2, 3, 4, 5, 6, 7})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func TestBind(t *testing.T) {
	top := twoNodes(t)
	for _, tt := range []struct {
		mode  string
		nodes []int // of the workers' cards
		want  string
	}{
		{"node", []int{1, 0}, "[[4 5 6 7] [0 1 2 3]]"},
		{"node", []int{-1, -1, -1}, "[[0 1 2 3] [0 1 2 3] [4 5 6 7]]"}, // spread
		{"node", []int{-1}, "[[0 1 2 3]]"},
		{"node", []int{2, 9}, "[[0 1 2 3] [4 5 6 7]]"}, // nodes without CPUs
		{"socket", []int{1, 0}, "[[0 1 2 3 4 5 6 7] [0 1 2 3 4 5 6 7]]"},
		{"exclusive", []int{0, 1, 0}, "[[0 1] [4 5 6 7] [2 3]]"},
		{"core-complex", []int{0, 0}, "[[0 1 2 3] [0 1 2 3]]"},
		{"core-complex", []int{1, 1, 1}, "[[4 5] [6 7] [4 5]]"},
	} {
		got, err := top.bind(tt.mode, tt.nodes)
		if err != nil || fmt.Sprint(got) != tt.want {
			t.Errorf("%s %v: %v, %v; want %s", tt.mode, tt.nodes, got, err, tt.want)
		}
	}
	if got, err := top.bind("exclusive", []int{0, 0, 0}); err == nil || !strings.Contains(err.Error(), "NUMA node 0 has 2 cores for 3 workers") {
		t.Errorf("exclusive: %v, %v; want an error", got, err)
	}
}

// TestBindOnPart: a process that may not run everywhere shares out what it has; a socket is all its nodes.
func TestBindOnPart(t *testing.T) {
	top, err := readTopology(cpuTree(`
		0 0 0,4 -
		1 0 1,5 -
		2 1 2,6 -
		3 1 3,7 -
		4 0 0,4 -
		5 0 1,5 -
		6 1 2,6 -
		7 1 3,7 -`, "0-1,4-5", "2-3,6-7"), []int{1, 2, 3, 5, 6})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		mode  string
		nodes []int
		want  string
	}{
		{"node", []int{0, 1}, "[[1 5] [2 3 6]]"},
		{"socket", []int{1}, "[[2 3 6]]"},
		{"exclusive", []int{1, 1, 0}, "[[2 6] [3] [1 5]]"},
		{"core-complex", []int{1, 1, 1}, "[[2 6] [3] [2 6]]"}, // without a cache, cores
	} {
		got, err := top.bind(tt.mode, tt.nodes)
		if err != nil || fmt.Sprint(got) != tt.want {
			t.Errorf("%s %v: %v, %v; want %s", tt.mode, tt.nodes, got, err, tt.want)
		}
	}
}

func TestExclusiveShares(t *testing.T) {
	var lines strings.Builder
	for cpu := range 7 {
		fmt.Fprintf(&lines, "%d 0 %d 0-6\n", cpu, cpu)
	}
	top, err := readTopology(cpuTree(lines.String()), []int{0, 1, 2, 3, 4, 5, 6}) // a kernel without NUMA
	if err != nil {
		t.Fatal(err)
	}
	got, err := top.bind("exclusive", []int{-1, -1, -1})
	if want := "[[0 1 2] [3 4] [5 6]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v; want %s", got, err, want)
	}
}

func TestTopologyThatIsNotThere(t *testing.T) {
	for name, tree := range map[string]fs.FS{
		"no CPU":       cpuTree(""),
		"no number":    cpuTree("0 x 0 0"),
		"no list":      cpuTree("0 0 x 0"),
		"no caches":    cpuTree("0 0 0 x"),
		"no node list": cpuTree("0 0 0 0", "x"),
	} {
		if top, err := readTopology(tree, []int{0}); err == nil {
			t.Errorf("%s: %+v, want an error", name, top)
		}
	}
}

// TestMachineTopology reads that of this machine: every CPU is of one node.
func TestMachineTopology(t *testing.T) {
	top, err := machineTopology()
	if err != nil {
		t.Skip(err)
	}
	seen := map[int]bool{}
	for node, cpus := range top.nodes {
		for _, cpu := range cpus {
			if _, known := top.cpus[cpu]; !known || seen[cpu] {
				t.Errorf("CPU %d of node %d: %+v", cpu, node, top)
			}
			seen[cpu] = true
		}
	}
	if len(seen) != len(top.cpus) {
		t.Errorf("%d of %d CPUs are of a node", len(seen), len(top.cpus))
	}
}

func TestParseCPUList(t *testing.T) {
	for s, want := range map[string][]int{"": nil, "0": {0}, "0-3,8": {0, 1, 2, 3, 8}, "5,7-7": {5, 7}} {
		if got, err := parseCPUList(s); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"x", "1-", "-1", "3-1", "1,,2", "0-70000", "1-2-3", " 1"} {
		if got, err := parseCPUList(s); err == nil {
			t.Errorf("%q: %v, want an error", s, got)
		}
	}
}

func FuzzParseCPUList(f *testing.F) {
	for _, s := range []string{"", "0-3,8", "0-65535,0-65535,0-65535", "3-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cpus, err := parseCPUList(s)
		if err != nil {
			return
		}
		fields := make([]string, len(cpus))
		for i, cpu := range cpus {
			fields[i] = fmt.Sprint(cpu)
		}
		again, err := parseCPUList(strings.Join(fields, ","))
		if err != nil && len(cpus) <= maxCPUs {
			t.Errorf("%q: its CPUs one by one: %v", s, err)
		}
		if diff := cmp.Diff(cpus, again); err == nil && diff != "" {
			t.Errorf("%q: its CPUs one by one (-want +got):\n%s", s, diff)
		}
	})
}
