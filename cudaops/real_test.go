package cudaops_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
)

// Tests of real cards with a driver that is not: see package fakecuda.

func TestRealCards(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{2048, 1024}, Context: 100}) {
		return
	}
	devices, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	want := []cudaops.Device{
		{Logical: 0, Physical: 0, Primary: true, Name: "Fake Card 0", UUID: fakecuda.UUID(0), Memory: 2048 * mib},
		{Logical: 1, Physical: 1, Name: "Fake Card 1", UUID: fakecuda.UUID(1), Memory: 1024 * mib},
	}
	if !slices.Equal(devices, want) {
		t.Errorf("cards %+v, want %+v", devices, want)
	}
	p, err := cudaops.DeviceProperties(1)
	if err != nil || p.Major != 9 || p.Minor != 0 || p.MultiProcessorCount != 132 || p.Simulated {
		t.Errorf("properties %+v, %v", p, err)
	}
	if free, total, err := cudaops.MemGetInfo(1); free != 924*mib || total != 1024*mib || err != nil {
		t.Errorf("%d free of %d, %v; want all but the context", free, total, err)
	}
}

func TestRealVisibility(t *testing.T) {
	b := fakecuda.UUID(1)
	for _, tt := range []struct {
		value string
		want  []int
	}{
		{"", nil},
		{"-1", nil},
		{"2", nil},
		{"1,0", []int{1, 0}},
		{"1", []int{1}},
		{"0,2,-1,1", []int{0}},
		{"0,0", nil},
		{"GPU-", nil},
		{b, []int{1}},
		{b[:8] + "," + fakecuda.UUID(0), []int{1, 0}},
	} {
		t.Run(fmt.Sprintf("%.12q", tt.value), func(t *testing.T) {
			if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Env: map[string]string{"CUDA_VISIBLE_DEVICES": tt.value}}) {
				return
			}
			if got := physical(t); !slices.Equal(got, tt.want) {
				t.Errorf("physical cards %v, want %v", got, tt.want)
			}
			got, err := cudaops.VisibleDevices()
			want := cudaops.ResolveVisible([]string{fakecuda.UUID(0), b}, tt.value, true)
			if err != nil || got.String() != want.String() || got.Repeated != want.Repeated || got.Physical != 2 {
				t.Errorf("%+v, %v; want %+v", got, err, want)
			}
			if _, err := cudaops.Alloc(0, 1); len(tt.want) == 0 {
				var none *cudaops.NoDeviceError
				if !errors.As(err, &none) || !strings.Contains(none.Error(), "the machine has 2") {
					t.Errorf("alloc: error %v, want a NoDeviceError", err)
				}
			}
		})
	}
}

// TestDriverAgainstRules: what the driver shows counts, whatever CUDA_VISIBLE_DEVICES seems to mean.
func TestDriverAgainstRules(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "0,1", "FAKE_CUDA_SEEN": "1"}}) {
		return
	}
	if got := physical(t); !slices.Equal(got, []int{1}) {
		t.Errorf("physical cards %v, want 1 alone", got)
	}
	if v, err := cudaops.VisibleDevices(); !slices.Equal(v.Cards, []int{1}) || v.Physical != 2 || err != nil {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestDriverStopsWorking: the driver is there, but does not start.
func TestDriverStopsWorking(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, InitCode: 803}) {
		return
	}
	_, err := cudaops.AvailableDevices()
	var e *cuda.Error
	if !errors.As(err, &e) || e.Func != "cuInit" || e.Code != 803 || !strings.Contains(err.Error(), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): system has unsupported") {
		t.Errorf("error %v", err)
	}
	if n := cudaops.DeviceCount(); n != 0 {
		t.Errorf("%d cards", n)
	}
}

func TestWithoutNVML(t *testing.T) {
	fail := []fakecuda.Failure{{Func: "nvmlInit_v2", Code: 9, From: 1}}
	t.Run("unset", func(t *testing.T) {
		if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Fail: fail}) {
			return
		}
		if got := physical(t); !slices.Equal(got, []int{0, 1}) {
			t.Errorf("physical cards %v", got)
		}
		if err := cudaops.SetPerProcessMemoryFraction(0.5); err != nil {
			t.Fatal(err)
		}
		if e := wantOOM(t, 0, 600*mib); e.Overhead != 0 || e.Others != nil || e.Limit.Bytes != 512*mib {
			t.Errorf("%+v", e)
		}
	})
	t.Run("set", func(t *testing.T) {
		if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Fail: fail, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "1"}}) {
			return
		}
		if got := physical(t); !slices.Equal(got, []int{cudaops.UnknownPhysical}) {
			t.Errorf("physical cards %v, want an unknown one", got)
		}
		if err := cudaops.SetDevice(1); err == nil || !strings.Contains(err.Error(), "cuda:0 = "+fakecuda.UUID(1)) {
			t.Errorf("error %v does not say which card is visible", err)
		}
	})
}

// TestContexts: a card gets a context when memory of it is wanted, not before, and the others none.
func TestContexts(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024, 1024}, Context: 100}) {
		return
	}
	if _, err := cudaops.DeviceProperties(2); err != nil {
		t.Fatal(err)
	}
	for i := range cudaops.DeviceCount() {
		if err := cudaops.Synchronize(i); err != nil {
			t.Fatal(err)
		}
	}
	if n := fakecuda.Count(fakecuda.Calls(t), "cuDevicePrimaryCtxRetain"); n != 0 {
		t.Errorf("%d contexts before memory was wanted", n)
	}
	free(t, alloc(t, 1, 10))
	if _, _, err := cudaops.MemGetInfo(1); err != nil {
		t.Fatal(err)
	}
	calls := fakecuda.Calls(t)
	context, memory := slices.Index(calls, "cuDevicePrimaryCtxRetain 1"), slices.Index(calls, "cuMemAlloc_v2 1 2097152")
	if context < 0 || memory < context || fakecuda.Count(calls, "cuDevicePrimaryCtxRetain") != 1 {
		t.Errorf("context at %d, memory at %d of\n%s", context, memory, strings.Join(calls, "\n"))
	}
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	calls = fakecuda.Calls(t)
	if fakecuda.Count(calls, "cuMemFree_v2") != 1 || fakecuda.Count(calls, "cuDevicePrimaryCtxRetain") != 1 {
		t.Errorf("calls\n%s", strings.Join(calls, "\n"))
	}
}

// TestRealTransfers: what is written comes back, over the edges of the pinned pieces, and src may change after Write.
func TestRealTransfers(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{2048, 2048}}) {
		return
	}
	const size = 18*mib + 5 // more than all pieces together
	random := func(n int, r *rand.ChaCha8) []byte {
		b := make([]byte, n)
		_, _ = r.Read(b) // never fails
		return b
	}
	var wait sync.WaitGroup
	for id := range 4 {
		wait.Go(func() {
			source := rand.NewChaCha8([32]byte{byte(id)})
			r := rand.New(source)
			m, err := cudaops.Alloc(id%2, size)
			if err != nil {
				t.Error(err)
				return
			}
			if m.Host() != nil {
				t.Error("a real card's memory has bytes on the host")
			}
			want := random(size, source)
			src := bytes.Clone(want)
			err = m.Write(0, src)
			clear(src)
			if err != nil {
				t.Error(err)
			}
			for _, n := range []int{1, 300_000, mib - 1, 2 * mib, 2*mib + 1, 17*mib + 3} {
				off := r.IntN(size - n)
				part := random(n, source)
				copy(want[off:], part)
				if err := m.Write(int64(off), part); err != nil {
					t.Error(err)
				}
				clear(part)
				got := make([]byte, n)
				if err := m.Read(int64(off), got); err != nil || !bytes.Equal(got, want[off:off+n]) {
					t.Errorf("%d bytes at %d: not what was written, %v", n, off, err)
				}
			}
			got := make([]byte, size)
			if err := m.Read(0, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("not what was written, %v", err)
			}
			if err := errors.Join(m.Write(0, want[:100]), m.Free()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	// Blocks whose last bytes are still on their way go back to the driver.
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	calls := fakecuda.Calls(t)
	if a, f := fakecuda.Count(calls, "cuMemAlloc_v2"), fakecuda.Count(calls, "cuMemFree_v2"); a != f || a == 0 {
		t.Errorf("%d pieces of memory taken, %d given back", a, f)
	}
}

// TestRealCap: what NVML sees of the process stays below the cap, context included; after the error it goes on with less.
func TestRealCap(t *testing.T) {
	for _, shift := range []int{0, 100_000} {
		t.Run(fmt.Sprintf("process+%d", shift), func(t *testing.T) {
			if !fakecuda.In(t, fakecuda.Config{Cards: []int64{8192}, Context: 500, Other: 1200, PIDShift: shift}) {
				return
			}
			if err := cudaops.SetPerProcessMemoryFraction(0.125); err != nil {
				t.Fatal(err)
			}
			free(t, alloc(t, 0, 400*mib)) // cached, and in the way of what follows
			m := alloc(t, 0, 420*mib)
			alloc(t, 0, 48*mib)
			e := wantOOM(t, 0, 100*mib)
			want := cudaops.ProcessMemory{PID: 4242, Name: "other", Bytes: 1200 * mib}
			if e.Overhead != 500*mib || e.Allocated != 468*mib || e.Limit.Bytes != 1024*mib || e.Largest != 24*mib || !slices.Equal(e.Others, []cudaops.ProcessMemory{want}) {
				t.Errorf("%+v", e)
			}
			if _, total, _ := cudaops.MemGetInfo(0); total != e.Total {
				t.Errorf("%d in all, %d in the error", total, e.Total)
			}
			alloc(t, 0, 24*mib)
			if available, _, err := cudaops.MemGetInfo(0); available != (8192-1200-1024+32)*mib || err != nil {
				t.Errorf("%d MiB free, %v; want the cap used but for what the driver may take", available/mib, err)
			}
			if e := wantOOM(t, 0, 1); e.Largest != 0 {
				t.Errorf("%d bytes more would fit under a cap that is used up", e.Largest)
			}
			free(t, m)
			free(t, alloc(t, 0, 60*mib))
			stats, err := cudaops.MemoryStats(0)
			if err != nil || stats.OOMs != 2 || stats.AllocRetries < 2 {
				t.Errorf("%+v, %v", stats, err)
			}
		})
	}
}

func TestRealCapBelowContext(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{8192}, Context: 500, Env: map[string]string{"CUDA_DEVICE_LIMIT": "100MiB"}}) {
		return
	}
	e := wantOOM(t, 0, 1)
	if e.Overhead != 500*mib || e.Largest != 0 || e.Limit.Source != cudaops.LimitByVariable {
		t.Errorf("%+v", e)
	}
}

// TestRealCardFull: without a cap the driver says when the card is full; cached memory is given back first.
func TestRealCardFull(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Context: 24}) {
		return
	}
	free(t, alloc(t, 0, 600*mib))
	m := alloc(t, 0, 900*mib)
	e := wantOOM(t, 0, 200*mib)
	if e.Largest != 100*mib || e.Free != 100*mib || e.Limit.Source != cudaops.LimitByCard {
		t.Errorf("%+v", e)
	}
	free(t, m)
	free(t, alloc(t, 0, 1000*mib))
}

// TestNoRoomForContext: other processes have filled the card.
func TestNoRoomForContext(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Context: 500, Other: 600}) {
		return
	}
	_, failed := cudaops.Open(0, 1)
	var open *cudaops.OutOfMemoryError
	if !errors.As(failed, &open) || open.Requested != 0 || !strings.Contains(failed.Error(), "tried to make a context") {
		t.Fatalf("Open: error %v, want an OutOfMemoryError", failed)
	}
	for _, e := range []*cudaops.OutOfMemoryError{open, wantOOM(t, 0, mib), wantOOM(t, 0, 1024*mib)} {
		if e.Free != 424*mib || e.Total != 1024*mib || len(e.Others) != 1 || e.Overhead != 0 || e.Largest != 0 || !strings.Contains(e.Error(), "no room for its context") {
			t.Errorf("%+v: %[1]v", e)
		}
	}
	r, err := cudaops.Rehearse(0)
	if err != nil {
		t.Fatal(err)
	}
	var e *cudaops.OutOfMemoryError
	if err := r.Alloc(mib); !errors.As(err, &e) || !e.NoContext {
		t.Errorf("rehearsal: error %v", err)
	}
}

// TestNoRoomForContextWithoutNVML: then nobody tells how much is free.
func TestNoRoomForContextWithoutNVML(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Context: 500, Other: 600, Fail: []fakecuda.Failure{{Func: "nvmlInit_v2", Code: 9, From: 1}}}) {
		return
	}
	_, err := cudaops.Open(0, 1)
	var e *cudaops.OutOfMemoryError
	if !errors.As(err, &e) || !e.NoContext || e.Free != cudaops.UnknownBytes || e.Total != 1024*mib || !strings.Contains(err.Error(), "an unknown part is free") {
		t.Errorf("error %v", err)
	}
	if e := wantOOM(t, 0, 1); e.Free != cudaops.UnknownBytes {
		t.Errorf("%+v", e)
	}
}

func TestRealErrors(t *testing.T) {
	for _, tt := range []struct {
		function string
		call     func() error
	}{
		{"cuDevicePrimaryCtxRetain", func() error { _, err := cudaops.Alloc(0, 1); return err }},
		{"cuStreamCreate", func() error { _, err := cudaops.Open(0, 1); return err }},
		{"cuMemAlloc_v2", func() error { _, err := cudaops.Alloc(0, 1); return err }},
		{"cuMemGetInfo_v2", func() error { _, _, err := cudaops.MemGetInfo(0); return err }},
		{"cuMemHostAlloc", func() error { return written(0) }},
		{"cuEventCreate", func() error { return written(0) }},
		{"cuMemcpyHtoDAsync_v2", func() error { return written(0) }},
		{"cuMemcpyDtoHAsync_v2", func() error { return written(0) }},
		{"cuMemFree_v2", func() error { return errors.Join(written(0), cudaops.EmptyCache()) }},
		{"cuStreamSynchronize", func() error { return errors.Join(written(0), cudaops.Synchronize(0)) }},
	} {
		t.Run(tt.function, func(t *testing.T) {
			if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Fail: []fakecuda.Failure{{Func: tt.function, Code: 700, From: 1}}}) {
				return
			}
			err := tt.call()
			var e *cuda.Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want the driver's", err)
			}
			want := cuda.Error{Func: tt.function, Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Text: "an illegal memory access was encountered"}
			if *e != want || !strings.HasPrefix(err.Error(), "cudaops: ") {
				t.Errorf("error %v: %+v, want %+v", err, e, want)
			}
		})
	}
}

// written writes to memory of a card and reads that again.
func written(device int) error {
	m, err := cudaops.Alloc(device, 100)
	if err != nil {
		return err
	}
	return errors.Join(m.Write(0, make([]byte, 100)), m.Read(0, make([]byte, 100)), m.Free())
}

// TestVisibilityChanges: the driver has read CUDA_VISIBLE_DEVICES, once.
func TestVisibilityChanges(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}}) {
		return
	}
	if n := cudaops.DeviceCount(); n != 2 {
		t.Fatalf("%d cards", n)
	}
	if err := os.Setenv("CUDA_VISIBLE_DEVICES", "0"); err != nil {
		t.Fatal(err)
	}
	var e *cudaops.EnvironmentChangedError
	if _, err := cudaops.AvailableDevices(); !errors.As(err, &e) {
		t.Errorf("error %v", err)
	}
}

// TestVisibilityChangesAfterFailure: that also holds where the first call failed, for another variable's sake.
func TestVisibilityChangesAfterFailure(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_LIMIT": "much"}}) {
		return
	}
	var wrong *cudaops.VariableError
	if _, err := cudaops.AvailableDevices(); !errors.As(err, &wrong) {
		t.Fatalf("error %v", err)
	}
	if err := errors.Join(os.Setenv("CUDA_DEVICE_LIMIT", "50%"), os.Setenv("CUDA_VISIBLE_DEVICES", "1")); err != nil {
		t.Fatal(err)
	}
	var e *cudaops.EnvironmentChangedError
	if devices, err := cudaops.AvailableDevices(); !errors.As(err, &e) || e.Variable != "CUDA_VISIBLE_DEVICES" || e.Then != "0" || e.Now != "1" {
		t.Errorf("cards %+v, error %v", devices, err)
	}
	if err := os.Setenv("CUDA_VISIBLE_DEVICES", "0"); err != nil {
		t.Fatal(err)
	}
	if got := physical(t); !slices.Equal(got, []int{0}) {
		t.Errorf("physical cards %v after it was put back", got)
	}
}

// TestSummaryWhileAllocating: NVML's number of what a process holds is compared with what the allocator held at the same time. In a container, where the
// largest difference that was seen counts, one that is too large would take from the cap for good.
func TestSummaryWhileAllocating(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{8192}, Context: 500, PIDShift: 100_000, Env: map[string]string{"CUDA_DEVICE_LIMIT": "4GiB"}}) {
		return
	}
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			for range 4000 {
				if _, err := cudaops.MemorySummary(0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 4000 {
		free(t, alloc(t, 0, 100*mib))
		if err := cudaops.EmptyCache(); err != nil {
			t.Fatal(err)
		}
	}
	wait.Wait()
	if e := wantOOM(t, 0, 4096*mib); e.Overhead != 500*mib {
		t.Errorf("%d MiB beside the allocator, want the context's 500", e.Overhead/mib)
	}
}
