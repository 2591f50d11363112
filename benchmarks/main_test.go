package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runHere runs the command.
func runHere(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(context.Background(), args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want []string // in the message
	}{
		{"nothing", nil, []string{"--suite", "host"}},
		{"unknown suite", []string{"--suite", "boat"}, []string{`--suite "boat"`, "host"}},
		{"unknown workload", []string{"--suite", "host", "--workload", "mlp,lstm"}, []string{`--workload "lstm"`, "mlp, cnn, matmul, elementwise, loader, recompute"}},
		{"unknown peer", []string{"--suite", "host", "--peer", "jax"}, []string{`--peer "jax"`, "gorgonia, torch"}},
		{"unknown mode of PyTorch", []string{"--suite", "card", "--torch-modes", "eager,compile+grahp"}, []string{`--torch-modes "grahp"`, "eager, compile, graph, last"}},
		{"argument", []string{"host"}, []string{`"host"`, "--suite host"}},
		{"no runs", []string{"--suite", "host", "--runs", "0"}, []string{"--runs 0", "at least 1"}},
		{"negative time", []string{"--suite", "host", "--min-time", "-1s"}, []string{"--min-time -1s"}},
		{"negative threads", []string{"--suite", "host", "--threads", "-2"}, []string{"--threads -2"}},
		{"unknown flag", []string{"--sweet", "host"}, []string{"--sweet"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, stdout, stderr := runHere(c.args...)
			if status != statusUsage || stdout != "" {
				t.Errorf("status %d, output %q; want %d and none", status, stdout, statusUsage)
			}
			for _, want := range append(c.want, "benchmarks: ") {
				if !strings.Contains(stderr, want) {
					t.Errorf("message %q lacks %q", stderr, want)
				}
			}
		})
	}
}

func TestHelp(t *testing.T) {
	status, stdout, stderr := runHere("--help")
	if status != statusOK || stderr != "" {
		t.Errorf("status %d, message %q", status, stderr)
	}
	for _, want := range []string{"go run ./benchmarks", "host", "matmul", "--min-time", "--json"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("help lacks %q", want)
		}
	}
}

// A whole run, as short as it can be.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.json")
	status, stdout, stderr := runHere("--suite", "host", "--workload", "mlp,elementwise,loader", "--peer", "none",
		"--runs", "1", "--min-time", "0", "--threads", "2", "--json", file)
	if status != statusOK {
		t.Fatalf("status %d: %s", status, stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	keys := []string{"batch", "metric", "mode", "peer", "ratio", "suite", "unit", "value", "workload"}
	seen := map[string]bool{}
	for _, r := range rows {
		if got := slices.Sorted(maps.Keys(r)); !slices.Equal(got, keys) {
			t.Errorf("row has keys %v, want %v", got, keys)
		}
		if v, ok := r["value"].(float64); !ok || !(v > 0) {
			t.Errorf("value %v of %v", r["value"], r)
		}
		if (r["peer"] == nil) != (r["ratio"] == nil) {
			t.Errorf("peer and ratio go together: %v", r)
		}
		workload, _ := r["workload"].(string)
		seen[workload] = true
		if r["suite"] != "host" || !strings.Contains(stdout, "| "+workload) {
			t.Errorf("row %v is not of the suite, or not in the table", r)
		}
	}
	if want := []string{"bias-relu-16M", "loader", "mlp"}; !slices.Equal(slices.Sorted(maps.Keys(seen)), want) {
		t.Errorf("workloads %v, want %v", seen, want)
	}
	if !strings.Contains(stdout, "2 cores") || !strings.Contains(stdout, "go1.") {
		t.Errorf("the machine is not described: %s", stdout)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestJSONFileFirst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none", "rows.json")
	status, _, stderr := runHere("--suite", "host", "--json", file)
	if status != statusFailure || !strings.Contains(stderr, "--json "+file) {
		t.Errorf("status %d, message %q", status, stderr)
	}
	if strings.Contains(stderr, "host: ") {
		t.Errorf("it measured before it looked: %q", stderr)
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	if status := run(ctx, []string{"--suite", "host", "--workload", "mlp"}, &out, &errs); status != statusFailure {
		t.Errorf("status %d", status)
	}
	if !strings.Contains(errs.String(), context.Canceled.Error()) || out.Len() > 0 {
		t.Errorf("message %q, output %q", errs.String(), out.String())
	}
}

// TestRowsOutliveFailures: what was measured before something fails is shown and saved.
func TestRowsOutliveFailures(t *testing.T) {
	const name = "failing"
	register(suite{name, "", []workload{
		{"well", "", func(_ context.Context, b *bench) error {
			b.add(row{Workload: "measured", Unit: milliseconds})
			return nil
		}},
		{"ill", "", func(context.Context, *bench) error { return errors.New("out of luck") }},
	}})
	defer delete(suites, name)
	file := filepath.Join(t.TempDir(), "rows.json")
	status, stdout, stderr := runHere("--suite", name, "--json", file)
	if status != statusFailure || !strings.Contains(stdout, "measured") || !strings.Contains(stderr, "failing: ill: out of luck") {
		t.Errorf("status %d, output %q, message %q", status, stdout, stderr)
	}
	if saved, err := os.ReadFile(file); err != nil || !strings.Contains(string(saved), "measured") {
		t.Errorf("saved %q, %v", saved, err)
	}
}
