package main

import (
	"os"
	"strings"
	"testing"
)

func Example_table() {
	t := timing{seconds: 0.002, spread: 0.013}
	theirs := stepTime("mlp", 64, "2 cores", timing{seconds: 0.03}).by("gorgonia")
	peak := speed("matmul-512", "2 cores", "speed", 0.4, "GFLOP/s", t).by("fma peak")
	writeTable(os.Stdout, []row{
		stepTime("mlp", 64, "2 cores", t).against("gorgonia", theirs.Value),
		theirs,
		speed("matmul-512", "2 cores", "speed", 0.3, "GFLOP/s", t).below("fma peak", peak.Value),
		peak,
	})
	// Output:
	// | workload   | batch | mode              | metric | value | unit    |     ± | peer     |  ratio |         that is |
	// |------------|------:|-------------------|--------|------:|---------|------:|----------|-------:|----------------:|
	// | mlp        |    64 | 2 cores           | step   |  2.00 | ms      | 1.3 % | gorgonia | 0.0667 | 15 times faster |
	// | mlp        |    64 | gorgonia, 2 cores | step   |  30.0 | ms      |       |          |        |                 |
	// | matmul-512 |       | 2 cores           | speed  |   150 | GFLOP/s | 1.3 % | fma peak |   1.33 |      75 % of it |
	// | matmul-512 |       | fma peak, 2 cores | speed  |   200 | GFLOP/s | 1.3 % |          |        |                 |
}

func TestRatioComparesTimes(t *testing.T) {
	time := row{Value: 2, Unit: milliseconds}.against("peer", 8)
	rate := row{Value: 8, Unit: "GFLOP/s"}.against("peer", 2)
	if *time.Ratio != 0.25 || *rate.Ratio != 0.25 {
		t.Errorf("a quarter of the time: %v; four times the speed: %v; want 0.25 for both", *time.Ratio, *rate.Ratio)
	}
	if got := verdict(row{Value: 8, Unit: milliseconds}.against("peer", 2)); got != "4 times slower" {
		t.Errorf("got %q", got)
	}
}

func TestCompare(t *testing.T) {
	at := func(batch int, mode string, ms float64) row {
		return row{Suite: "host", Workload: "mlp", Batch: &batch, Mode: mode, Metric: "step", Value: ms, Unit: milliseconds}
	}
	ours := []row{at(64, "2 cores", 1).against("gorgonia", 10), at(64, "1 core", 2), at(1024, "2 cores", 20)}
	theirs := []row{at(64, "torch, 2 cores", 2), at(1024, "torch, 2 cores", 10), at(8, "torch, 2 cores", 1)}
	got := compare(ours, "torch", theirs)
	if len(got) != 5 {
		t.Fatalf("%d rows, want three of theirs and two of ours: %v", len(got), got)
	}
	for i, want := range map[int]float64{1: 0.5, 3: 2} {
		if r := got[i]; r.Peer == nil || *r.Peer != "torch" || *r.Ratio != want {
			t.Errorf("row %d: %+v, want ratio %v", i, r, want)
		}
	}
	if *ours[0].Peer != "gorgonia" {
		t.Error("the row that was there has changed")
	}
}

func TestMachine(t *testing.T) {
	if got := cpuModel("processor\t: 0\nmodel name\t: Some CPU  @ 2 GHz\nmodel name\t: other\n"); got != "Some CPU @ 2 GHz" {
		t.Errorf("CPU %q", got)
	}
	if got := cpuModel("Features: fp asimd\n"); got != "" {
		t.Errorf("CPU %q", got)
	}
	for _, c := range []struct {
		loadavg string
		cores   int
		warns   bool
	}{
		{"0.15 0.70 0.80 1/234 567\n", 2, false},
		{"1.00 0.70 0.80 1/234 567\n", 2, false},
		{"1.20 0.70 0.80 1/234 567\n", 2, true},
		{"1.20 0.70 0.80 1/234 567\n", 16, false},
		{"", 2, false},
	} {
		if got := disturbance(c.loadavg, c.cores); strings.Contains(got, "Load average 1.20") != c.warns {
			t.Errorf("load %q on %d cores: %q", c.loadavg, c.cores, got)
		}
	}
}
