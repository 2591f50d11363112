package cuda_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/dl"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
)

func TestMain(m *testing.M) { fakecuda.Main(m) }

// loaded is the fake driver.
func loaded(t *testing.T) *cuda.API {
	t.Helper()
	api, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func TestCard(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{64, 64}}) {
		return
	}
	c, err := loaded(t).OpenCard(1)
	if err != nil {
		t.Fatal(err)
	}
	if c.Ordinal != 1 || c.Major != 9 || c.Minor != 0 || c.SMs != 132 || c.Stream == 0 || c.Ctx == 0 {
		t.Errorf("card %+v", c)
	}
	err = c.Do(func() error {
		p, err := c.MemAlloc(1000)
		if err != nil {
			return err
		}
		return errors.Join(c.MemsetD32(p, 7, 250, c.Stream), c.StreamSynchronize(c.Stream), c.MemFree(p))
	})
	if err != nil {
		t.Error(err)
	}
	refused := errors.New("refused")
	if err := c.Do(func() error { return refused }); !errors.Is(err, refused) {
		t.Errorf("Do: error %v, want that of its function", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	calls := fakecuda.Calls(t)
	if a, b := fakecuda.Count(calls, "cuDevicePrimaryCtxRetain"), fakecuda.Count(calls, "cuDevicePrimaryCtxRelease_v2"); a != 1 || b != 1 {
		t.Errorf("context retained %d times, released %d times", a, b)
	}
	if !slices.Contains(calls, "cuMemAlloc_v2 1 1000") {
		t.Errorf("no memory of card 1 taken:\n%s", strings.Join(calls, "\n"))
	}
}

// A kernel is launched early by its attribute, and as wide as otherwise.
func TestLaunchEarly(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{64}}) {
		return
	}
	c, err := loaded(t).OpenCard(0)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Do(func() error {
		m, err := c.ModuleLoadData([]byte{1, 0})
		if err != nil {
			return err
		}
		f, err := c.ModuleGetFunction(m, "k")
		if err != nil {
			return err
		}
		return errors.Join(c.LaunchEarly(f, cuda.Dim3{X: 3, Y: 2}, cuda.Dim3{X: 256}, 1024, c.Stream, cuda.NewArgs(cuda.Ptr(8), int32(1))), c.ModuleUnload(m))
	})
	if err != nil {
		t.Fatal(err)
	}
	calls := fakecuda.Calls(t)
	if !slices.Contains(calls, "cuLaunchKernelEx 3,2,1 256,1,1, attribute 6 1") {
		t.Errorf("calls %q, want one with attribute 6", calls)
	}
}

func TestOpenCardFails(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{64}, Fail: []fakecuda.Failure{{Func: "cuStreamCreate", Code: 2, From: 1}}}) {
		return
	}
	api := loaded(t)
	var e *cuda.Error
	if _, err := api.OpenCard(0); !errors.As(err, &e) || e.Error() != "cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" {
		t.Errorf("error %v", err)
	}
	if n := fakecuda.Count(fakecuda.Calls(t), "cuDevicePrimaryCtxRelease_v2"); n != 1 {
		t.Errorf("context released %d times", n)
	}
	if _, err := api.OpenCard(1); !errors.As(err, &e) || e.Func != "cuDeviceGet" || e.Code != cuda.InvalidDevice {
		t.Errorf("no such card: error %v", err)
	}
}

// counter is memory that is counted, and not there.
type counter struct {
	bytes int64
	trims int
}

func (c *counter) Alloc(bytes int64) (cuda.Ptr, error) {
	c.bytes += bytes
	return cuda.Ptr(bytes), nil
}

func (c *counter) Free(p cuda.Ptr) error {
	c.bytes -= int64(p)
	return nil
}

func (c *counter) Trim() error {
	c.trims++
	return nil
}

func TestUseMemory(t *testing.T) {
	var m counter
	var c cuda.Card
	c.UseMemory(&m)
	p, err := c.MemAlloc(100)
	if err != nil || p != 100 || m.bytes != 100 {
		t.Errorf("%d bytes at %d, %v", m.bytes, p, err)
	}
	if err := c.MemFree(p); err != nil || m.bytes != 0 {
		t.Errorf("%d bytes, %v", m.bytes, err)
	}
	if err := c.MemTrim(); err != nil || m.trims != 1 {
		t.Errorf("trimmed %d times, %v", m.trims, err)
	}
}

func TestNoDriver(t *testing.T) {
	_, err := cuda.Open("libcuda-that-is-not-there.so.1")
	var missing *dl.MissingError
	if !errors.As(err, &missing) || missing.For != "computing on CUDA cards" {
		t.Errorf("error %v, want a MissingError", err)
	}
}
