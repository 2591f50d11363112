package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// numaModes are the ways to bind workers, beside none.
var numaModes = []string{"node", "socket", "exclusive", "core-complex"}

// topology is which CPUs belong together, of those that this process may run on.
type topology struct {
	nodes map[int][]int // NUMA node: its CPUs
	cpus  map[int]cpuPlace
}

// cpuPlace is where a CPU is in its machine.
type cpuPlace struct {
	socket  int
	core    int // the lowest CPU of its physical core
	complex int // the lowest CPU of those that share its last level of cache
}

func machineTopology() (*topology, error) {
	allowed, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	return readTopology(os.DirFS("/sys/devices/system"), allowed)
}

// readTopology reads the kernel's folder of CPUs and nodes. A kernel without NUMA has one node.
func readTopology(sys fs.FS, allowed []int) (*topology, error) {
	t := &topology{nodes: map[int][]int{}, cpus: map[int]cpuPlace{}}
	for _, cpu := range allowed {
		dir := fmt.Sprintf("cpu/cpu%d", cpu)
		socket, err := readNumber(sys, path.Join(dir, "topology/physical_package_id"))
		if err != nil {
			return nil, err
		}
		core, err := readCPUList(sys, path.Join(dir, "topology/thread_siblings_list"))
		if err != nil {
			return nil, err
		}
		sharing, err := lastCache(sys, dir)
		if err != nil {
			return nil, err
		}
		if len(sharing) == 0 {
			sharing = core
		}
		t.cpus[cpu] = cpuPlace{socket: socket, core: lowest(core, cpu), complex: lowest(sharing, cpu)}
	}
	lists, err := fs.Glob(sys, "node/node[0-9]*/cpulist")
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		node, err := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(list)), "node"))
		if err != nil {
			return nil, fmt.Errorf("%s: not a node's number: %w", list, err)
		}
		cpus, err := readCPUList(sys, list)
		if err != nil {
			return nil, err
		}
		if cpus = intersection(cpus, allowed); len(cpus) > 0 {
			t.nodes[node] = cpus
		}
	}
	if len(t.nodes) == 0 {
		t.nodes[0] = slices.Sorted(slices.Values(allowed))
	}
	return t, nil
}

// lowest is the first of the CPUs, one of which is cpu.
func lowest(cpus []int, cpu int) int { return slices.Min(append(cpus, cpu)) }

// lastCache is the CPUs that share a CPU's last level of cache: nil where the kernel tells of none.
func lastCache(sys fs.FS, cpu string) ([]int, error) {
	levels, err := fs.Glob(sys, path.Join(cpu, "cache/index*/level"))
	if err != nil {
		return nil, err
	}
	last, found := 0, ""
	for _, file := range levels {
		level, err := readNumber(sys, file)
		if err != nil {
			return nil, err
		}
		if level > last {
			last, found = level, path.Dir(file)
		}
	}
	if found == "" {
		return nil, nil
	}
	return readCPUList(sys, path.Join(found, "shared_cpu_list"))
}

// bind gives each worker CPUs near a node, which is negative where it is not known: such workers are spread over the nodes.
func (t *topology) bind(mode string, nodes []int) ([][]int, error) {
	nodes = t.spread(nodes)
	of := map[int][]int{} // node: its workers
	for worker, node := range nodes {
		of[node] = append(of[node], worker)
	}
	bound := make([][]int, len(nodes))
	for node, workers := range of {
		parts, err := t.parts(mode, node, len(workers))
		if err != nil {
			return nil, err
		}
		for i, worker := range workers {
			bound[worker] = parts[i%len(parts)]
		}
	}
	return bound, nil
}

// spread fills in nodes that are not known, or have no CPU for this process: neighbours get the same one.
func (t *topology) spread(nodes []int) []int {
	all := slices.Sorted(maps.Keys(t.nodes))
	filled := slices.Clone(nodes)
	for i, node := range filled {
		if _, ok := t.nodes[node]; !ok {
			filled[i] = all[i*len(all)/len(filled)]
		}
	}
	return filled
}

// parts are the sets of CPUs that so many workers of a node take in turn.
func (t *topology) parts(mode string, node, workers int) ([][]int, error) {
	cpus := t.nodes[node]
	switch mode {
	case "node":
		return [][]int{cpus}, nil
	case "socket":
		var socket []int
		for cpu, place := range t.cpus {
			if place.socket == t.cpus[cpus[0]].socket {
				socket = append(socket, cpu)
			}
		}
		slices.Sort(socket)
		return [][]int{socket}, nil
	case "core-complex":
		complexes := t.groups(cpus, func(p cpuPlace) int { return p.complex })
		slices.SortStableFunc(complexes, func(a, b []int) int { return cmp.Compare(len(b), len(a)) })
		return complexes, nil
	case "exclusive":
		cores := t.groups(cpus, func(p cpuPlace) int { return p.core })
		if len(cores) < workers {
			return nil, fmt.Errorf("NUMA node %d has %d cores for %d workers: start fewer workers, or bind them to node or core-complex", node, len(cores), workers)
		}
		parts := make([][]int, workers)
		for i := range parts { // the first ones get a core more where they do not divide
			share := len(cores) / (workers - i)
			if len(cores)%(workers-i) > 0 {
				share++
			}
			parts[i] = slices.Sorted(slices.Values(slices.Concat(cores[:share]...)))
			cores = cores[share:]
		}
		return parts, nil
	}
	return nil, errors.New("want one of " + strings.Join(numaModes, ", "))
}

// groups are the CPUs that have the same key, in the order of keys.
func (t *topology) groups(cpus []int, key func(cpuPlace) int) [][]int {
	by := map[int][]int{}
	for _, cpu := range cpus {
		k := key(t.cpus[cpu])
		by[k] = append(by[k], cpu)
	}
	var groups [][]int
	for _, k := range slices.Sorted(maps.Keys(by)) {
		groups = append(groups, by[k])
	}
	return groups
}

func intersection(a, b []int) []int {
	return slices.DeleteFunc(slices.Clone(a), func(n int) bool { return !slices.Contains(b, n) })
}

func readNumber(sys fs.FS, name string) (int, error) {
	text, err := fs.ReadFile(sys, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

func readCPUList(sys fs.FS, name string) ([]int, error) {
	text, err := fs.ReadFile(sys, name)
	if err != nil {
		return nil, err
	}
	cpus, err := parseCPUList(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return cpus, nil
}

// maxCPUs is more than a machine has.
const maxCPUs = 1 << 16

// parseCPUList reads the kernel's notation, such as 0-3,8, or nothing for a node without CPUs.
func parseCPUList(s string) ([]int, error) {
	var cpus []int
	if s == "" {
		return nil, nil
	}
	for entry := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(entry, "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err := errors.Join(err, err2); err != nil || first > last || len(cpus) > maxCPUs {
			return nil, fmt.Errorf("%q is no list of CPUs, such as 0-3,8", s)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, int(cpu))
		}
	}
	return cpus, nil
}
