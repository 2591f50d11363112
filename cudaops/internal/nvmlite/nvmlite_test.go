package nvmlite_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/cudaops/internal/nvmlite"
)

func TestMain(m *testing.M) { fakecuda.Main(m) }

func TestCards(t *testing.T) {
	// NVML ignores CUDA_VISIBLE_DEVICES.
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{2048, 1024}, Context: 100, Other: 30, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "1"}}) {
		return
	}
	api, err := nvmlite.Load()
	if err != nil {
		t.Fatal(err)
	}
	cards, err := api.Cards()
	if err != nil || len(cards) != 2 || cards[0].UUID != fakecuda.UUID(0) || cards[1].UUID != fakecuda.UUID(1) {
		t.Fatalf("%+v, %v", cards, err)
	}
	if _, _, err := cudaops.MemGetInfo(0); err != nil { // makes a context
		t.Fatal(err)
	}
	c := cards[1]
	if name, err := c.Name(); name != "Fake Card 1" || err != nil {
		t.Errorf("name %q, %v", name, err)
	}
	if major, minor, err := c.Capability(); major != 9 || minor != 0 || err != nil {
		t.Errorf("capability %d.%d, %v", major, minor, err)
	}
	if bus, err := c.BusID(); bus != "00000000:02:00.0" || err != nil {
		t.Errorf("bus %q, %v", bus, err)
	}
	if total, used, err := c.Memory(); total != 1024<<20 || used != 130<<20 || err != nil {
		t.Errorf("%d used of %d, %v", used, total, err)
	}
	if u, err := c.Utilization(); u != 42 || err != nil {
		t.Errorf("utilization %d, %v", u, err)
	}
	want := []nvmlite.Process{{PID: 4242, Bytes: 30 << 20}, {PID: os.Getpid(), Bytes: 100 << 20}}
	if got, err := c.Processes(); !slices.Equal(got, want) || err != nil {
		t.Errorf("processes %v, %v; want %v", got, err, want)
	}
	for pid, want := range map[int]string{4242: "other", 7: ""} {
		if name, err := api.ProcessName(pid); name != want || err != nil {
			t.Errorf("process %d is %q, %v; want %q", pid, name, err, want)
		}
	}
}

func TestFailures(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{64}, Fail: []fakecuda.Failure{
		{Func: "nvmlDeviceGetUtilizationRates", Code: 3, From: 1}, {Func: "nvmlDeviceGetMemoryInfo", Code: 9, From: 1},
	}}) {
		return
	}
	api, err := nvmlite.Load()
	if err != nil {
		t.Fatal(err)
	}
	cards, err := api.Cards()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cards[0].Utilization(); !nvmlite.Unsupported(err) {
		t.Errorf("utilization: error %v, want one of what the card does not tell", err)
	}
	var e *nvmlite.Error
	if _, _, err := cards[0].Memory(); !errors.As(err, &e) || *e != (nvmlite.Error{Func: "nvmlDeviceGetMemoryInfo", Code: 9, Text: "Driver Not Loaded"}) {
		t.Errorf("memory: error %v", err)
	}
}
