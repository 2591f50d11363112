package main

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

// onLine is an output that does something when a line has come that matches.
type onLine struct {
	strings.Builder
	matches *regexp.Regexp
	do      func(match []string)
}

func (w *onLine) Write(b []byte) (int, error) {
	if m := w.matches.FindStringSubmatch(string(b)); m != nil {
		w.do(m)
	}
	return w.Builder.Write(b)
}

// TestMetricsEndpoint asks for metrics while training goes on, and finds nobody there when it has ended.
func TestMetricsEndpoint(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	client := http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	url := ""
	get := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		return client.Do(req)
	}
	values := map[string]float64{}
	stdout := &onLine{matches: regexp.MustCompile(`^step 12/12 `), do: func([]string) { // the session's own goroutine waits here
		resp, err := get()
		if err != nil {
			t.Error(err)
			return
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Error(err)
		}
		for name, f := range families {
			for _, m := range f.Metric {
				values[name] += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetSummary().GetSampleCount())
			}
		}
	}}
	stderr := &onLine{matches: regexp.MustCompile(`metrics for Prometheus: (\S+)`), do: func(m []string) { url = m[1] }}
	args := []string{"--data", smallMNIST(t, 64*12), "--max-steps", "12", "--metrics-addr", "localhost:0", "--memory-fraction", "0.5"}
	if code := run(t.Context(), args, stdout, stderr); code != statusOK {
		t.Fatalf("exit status %d; stderr:\n%s", code, stderr)
	}
	for name, want := range map[string]float64{
		"tandem_step_duration_seconds": 12, "tandem_samples_total": 64 * 12, "tandem_memory_limit_bytes": 2 * 32 << 20, "tandem_restarts_total": 0,
	} {
		if got, there := values[name]; got != want || !there {
			t.Errorf("%s is %v (%t), want %v", name, got, there, want)
		}
	}
	for _, name := range []string{"tandem_loss", "tandem_samples_per_second", "tandem_collective_seconds_total", "tandem_memory_allocated_bytes", "tandem_memory_reserved_bytes"} {
		if values[name] <= 0 {
			t.Errorf("%s is %v", name, values[name])
		}
	}
	if resp, err := get(); err == nil {
		t.Error("the endpoint is there after the end", resp.Body.Close())
	}
}

// TestLogDir looks for the points of all curves; that TensorBoard can read them is for package tensorboard to test.
func TestLogDir(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	folder := filepath.Join(t.TempDir(), "runs", "first")
	rep := reportOf(t, "--data", smallMNIST(t, 64*6), "--epochs", "2", "--logdir", folder)
	files, err := filepath.Glob(filepath.Join(folder, "*tfevents*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[string]int{
		"loss/train": rep.Steps, "throughput/images_per_second": rep.Steps, "accuracy/test": 2,
		"memory/cuda0_allocated_bytes": rep.Steps, "memory/cuda1_reserved_bytes": rep.Steps,
	} {
		if got := bytes.Count(b, []byte(tag)); got != want || want == 0 {
			t.Errorf("%d points of %s, want %d", got, tag, want)
		}
	}
}
