package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/tandem-train/tandem/internal/host/kernel"
)

// describeMachine says what the numbers are numbers of, and whether something else seems to be running. Linux tells the CPU's name and
// the load; elsewhere the line does without.
func describeMachine(t *torch) string {
	cpu, cpus := runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU()
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if name, n := cpuModel(string(info)); n > 0 {
			cpu, cpus = name, n
		}
	}
	cores := runtime.GOMAXPROCS(0)
	s := fmt.Sprintf("%s, %s of %d, %v, %s", cpu, onCores(cores), runtime.NumCPU(), kernel.Best(), runtime.Version())
	if t != nil {
		s += ", PyTorch " + t.version
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		s += disturbance(string(load), cores, cpus)
	}
	return s
}

// cpuModel finds the name of the CPUs in /proc/cpuinfo, and how many there are in the whole machine.
func cpuModel(info string) (name string, n int) {
	for line := range strings.Lines(info) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			name = strings.Join(strings.Fields(value), " ")
			n++
		}
	}
	return name, n
}

// disturbance warns when the load of the last minute, the first number of /proc/loadavg, leaves less than three quarters of the cores
// that are to be used.
func disturbance(loadavg string, cores, cpus int) string {
	first, _, _ := strings.Cut(loadavg, " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil || float64(cpus)-load >= 0.75*float64(cores) {
		return ""
	}
	return fmt.Sprintf("\n\nLoad average %s when this began: another job seems to be running, so that times may be off. Ratios suffer less.", first)
}
