package machine_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/cudaops/machine"
)

func TestMain(m *testing.M) { fakecuda.Main(m) }

func inspect(t *testing.T) machine.Machine {
	t.Helper()
	m, err := machine.Inspect()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCardsOfDriver: what NVML and the driver say of the same cards is put together by UUID, and no card gets a context.
func TestCardsOfDriver(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{2048, 1024, 512}, Other: 10, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "2,0,7"}}) {
		return
	}
	m := inspect(t)
	if m.NVML != nil || m.CUDA != nil || m.Visibility.Physical != 3 || len(m.Visibility.Ignored) != 1 {
		t.Errorf("NVML %v, CUDA %v, visibility %+v", m.NVML, m.CUDA, m.Visibility)
	}
	for i, want := range []struct {
		logical int
		memory  int64
	}{{1, 2048 << 20}, {-1, 1024 << 20}, {0, 512 << 20}} {
		c := m.Cards[i]
		if c.Physical != i || c.Logical != want.logical || c.Properties.TotalMemory != want.memory || c.Properties.UUID != fakecuda.UUID(i) || c.Properties.Major != 9 ||
			c.MemoryUsed != 10<<20 || c.Utilization != 42 || c.Problem != nil || len(c.Processes) != 1 || c.Processes[0].Name != "other" {
			t.Errorf("card %d: %+v", i, c)
		}
	}
	if n := fakecuda.Count(fakecuda.Calls(t), "cuDevicePrimaryCtxRetain"); n != 0 {
		t.Errorf("%d contexts", n)
	}
}

// TestCardsWithoutNVML: the driver's cards are better than none.
func TestCardsWithoutNVML(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{2048, 1024}, Fail: []fakecuda.Failure{{Func: "nvmlInit_v2", Code: 9, From: 1}}}) {
		return
	}
	m := inspect(t)
	if m.NVML == nil || !strings.Contains(m.NVML.Error(), "Driver Not Loaded") || len(m.Cards) != 2 {
		t.Fatalf("%+v", m)
	}
	if c := m.Cards[1]; c.Physical != 1 || c.Logical != 1 || c.Properties.TotalMemory != 1024<<20 || c.MemoryUsed != machine.Unknown {
		t.Errorf("card %+v", c)
	}
}

// TestDriverThatDoesNotWork: cards are there, and why they can't be used.
func TestDriverThatDoesNotWork(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{2048}, InitCode: 803}) {
		return
	}
	m := inspect(t)
	var e *cuda.Error
	if len(m.Cards) != 1 || !errors.As(m.CUDA, &e) || e.Code != 803 {
		t.Errorf("%+v", m)
	}
	if n := cudaops.DeviceCount(); n != 0 {
		t.Errorf("%d cards", n)
	}
}

func TestLibraries(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{64}}) {
		return
	}
	for i, l := range machine.Libraries() {
		found := l.Err == nil
		if l.Name == "" || l.For == "" || found != (l.Path != "") || found != (l.Version != "") {
			t.Errorf("%+v", l)
		}
		if i == 0 && (!found || l.Version != "13.0" || filepath.Base(l.Path) != "libcuda.so.1") {
			t.Errorf("the driver is %+v", l)
		}
		if !found && !strings.Contains(l.Err.Error(), "TANDEM_CUDA_PATH") {
			t.Errorf("%s: error %v does not say what would help", l.Name, l.Err)
		}
	}
	if n := fakecuda.Count(fakecuda.Calls(t), "cuInit"); n != 0 {
		t.Error("looking for libraries initialised the driver")
	}
}
