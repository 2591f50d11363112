package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

func Example_table() {
	t := timing{seconds: 0.002, spread: 0.013}
	theirs := stepTime("mlp", 64, "2 cores", timing{seconds: 0.03}).by("gorgonia")
	peak := speed("matmul-512", "2 cores", "speed", 0.4, "GFLOP/s", t).by("fma peak")
	ours := speed("matmul-512", "2 cores", "speed", 0.3, "GFLOP/s", t).against("fma peak", peak.Value)
	ours.limit = true
	writeTable(os.Stdout, []row{stepTime("mlp", 64, "2 cores", t).against("gorgonia", theirs.Value), theirs, ours, peak})
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
	at := func(seconds float64) contender {
		return func(_ context.Context, n int) (time.Duration, error) {
			return time.Duration(seconds * float64(n) * float64(time.Second)), nil
		}
	}
	took := func(t timing) row { return stepTime("mlp", 64, "2 cores", t) }
	b := &bench{sampling: sampling{runs: 1}, suite: "host"}
	reached, err := b.compare(context.Background(),
		entrant{run: at(2), row: took}, entrant{run: at(4), row: took, peer: "slow"}, entrant{run: at(1), row: took, peer: "bound", limit: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(reached) != 3 || reached[0].Value != 2000 || reached[2].Value != 1000 {
		t.Errorf("reached %v", reached)
	}
	var got strings.Builder
	writeTable(&got, b.rows)
	want := `| workload | batch | mode           | metric | value | unit | ± | peer  | ratio |        that is |
|----------|------:|----------------|--------|------:|------|--:|-------|------:|---------------:|
| mlp      |    64 | 2 cores        | step   |  2000 | ms   |   | slow  |   0.5 | 2 times faster |
| mlp      |    64 | 2 cores        | step   |  2000 | ms   |   | bound |  2.00 |     50 % of it |
| mlp      |    64 | slow, 2 cores  | step   |  4000 | ms   |   |       |       |                |
| mlp      |    64 | bound, 2 cores | step   |  1000 | ms   |   |       |       |                |
`
	if got.String() != want {
		t.Errorf("rows:\n%swant:\n%s", got.String(), want)
	}
}

func TestMachine(t *testing.T) {
	if name, n := cpuModel("processor\t: 0\nmodel name\t: Some CPU  @ 2 GHz\nprocessor\t: 1\nmodel name\t: Some CPU  @ 2 GHz\n"); name != "Some CPU @ 2 GHz" || n != 2 {
		t.Errorf("%d CPUs %q", n, name)
	}
	if name, n := cpuModel("Features: fp asimd\n"); name != "" || n != 0 {
		t.Errorf("%d CPUs %q", n, name)
	}
	for _, c := range []struct {
		loadavg     string
		cores, cpus int
		warns       bool
	}{
		{"0.15 0.70 0.80 1/234 567\n", 2, 2, false},
		{"1.20 0.70 0.80 1/234 567\n", 2, 2, true},
		{"1.20 0.70 0.80 1/234 567\n", 2, 16, false},
		{"1.20 0.70 0.80 1/234 567\n", 16, 16, false},
		{"15.20 0.70 0.80 1/234 567\n", 2, 16, true},
		{"", 2, 2, false},
	} {
		if got := disturbance(c.loadavg, c.cores, c.cpus); strings.Contains(got, "another job") != c.warns {
			t.Errorf("load %q on %d cores of %d: %q", c.loadavg, c.cores, c.cpus, got)
		}
	}
}
