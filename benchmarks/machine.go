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
func describeMachine(torch *torchScript) string {
	cpu := runtime.GOOS + "/" + runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if name := cpuModel(string(info)); name != "" {
			cpu = name
		}
	}
	cores := runtime.GOMAXPROCS(0)
	s := fmt.Sprintf("%s, %s of %d, %v, %s", cpu, onCores(cores), runtime.NumCPU(), kernel.Best(), runtime.Version())
	if torch != nil {
		s += ", PyTorch " + torch.version
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		s += disturbance(string(load), cores)
	}
	return s
}

// cpuModel finds the CPU's name in /proc/cpuinfo.
func cpuModel(info string) string {
	for line := range strings.Lines(info) {
		if key, name, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.Join(strings.Fields(name), " ")
		}
	}
	return ""
}

// disturbance warns when the load average of the last minute, the first number of /proc/loadavg, keeps more than half of the cores busy.
func disturbance(loadavg string, cores int) string {
	first, _, _ := strings.Cut(loadavg, " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil || load <= float64(cores)/2 {
		return ""
	}
	return fmt.Sprintf("\n\nLoad average %s when this began: another job seems to be running, so that times may be off. Ratios suffer less.", first)
}
