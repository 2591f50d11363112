package cudaops_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

const mib = 1 << 20

func alloc(t *testing.T, device int, n int64) *cudaops.Memory {
	t.Helper()
	m, err := cudaops.Alloc(device, n)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func free(t *testing.T, m *cudaops.Memory) {
	t.Helper()
	if err := m.Free(); err != nil {
		t.Fatal(err)
	}
}

func wantOOM(t *testing.T, device int, n int64) *cudaops.OutOfMemoryError {
	t.Helper()
	_, err := cudaops.Alloc(device, n)
	var e *cudaops.OutOfMemoryError
	if !errors.As(err, &e) {
		t.Fatalf("alloc of %d on card %d: error %v, want an OutOfMemoryError", n, device, err)
	}
	return e
}

func TestMemory(t *testing.T) {
	cudaopstest.Setup(t, "2x8MiB", "")
	m := alloc(t, 1, 10)
	if m.Device() != 1 || m.Len() != 10 || len(m.Host()) != 10 || cap(m.Host()) != 10 {
		t.Errorf("device %d, length %d, host %d of %d", m.Device(), m.Len(), len(m.Host()), cap(m.Host()))
	}
	if err := m.Write(3, []byte("card")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if err := m.Read(3, got); err != nil || string(got) != "card" || !bytes.Equal(m.Host()[3:7], got) {
		t.Errorf("read %q, %v; host %q", got, err, m.Host())
	}
	for _, off := range []int64{-1, 7, 10, 11, math.MaxInt64, math.MinInt64} {
		if err := m.Write(off, got); err == nil {
			t.Errorf("write of 4 bytes at %d of 10: no error", off)
		}
		if err := m.Read(off, got); err == nil {
			t.Errorf("read of 4 bytes at %d of 10: no error", off)
		}
	}
	if err := m.Write(10, nil); err != nil {
		t.Errorf("no bytes at the end: %v", err)
	}
	free(t, m)
	for name, err := range map[string]error{"Free": m.Free(), "Write": m.Write(0, got), "Read": m.Read(0, got), "Clear": m.Clear()} {
		if !errors.Is(err, cudaops.ErrFreed) || !strings.Contains(err.Error(), "cuda:1") {
			t.Errorf("%s of freed memory: error %v", name, err)
		}
	}
	if m.Host() != nil {
		t.Error("freed memory has bytes")
	}
}

func TestMemoryOfNoBytes(t *testing.T) {
	cudaopstest.Setup(t, "1", "")
	m := alloc(t, 0, 0)
	if m.Len() != 0 || m.Host() == nil || len(m.Host()) != 0 {
		t.Errorf("length %d, host %v", m.Len(), m.Host())
	}
	if n, err := cudaops.MemoryReserved(0); n != 0 || err != nil {
		t.Errorf("%d bytes reserved, %v", n, err)
	}
	if err := errors.Join(m.Write(0, nil), m.Read(0, nil)); err != nil {
		t.Error(err)
	}
	if err := m.Write(0, []byte{1}); err == nil {
		t.Error("a byte fits into none")
	}
	if err := m.Clear(); err != nil {
		t.Errorf("clear no bytes: %v", err)
	}
	free(t, m)
	if err := m.Free(); !errors.Is(err, cudaops.ErrFreed) {
		t.Errorf("second free: error %v", err)
	}
	if _, err := cudaops.Alloc(0, -1); err == nil || !strings.Contains(err.Error(), "-1 bytes") {
		t.Errorf("-1 bytes: error %v", err)
	}
}

func TestRecycledMemoryIsNaN(t *testing.T) {
	cudaopstest.Setup(t, "1", "")
	m := alloc(t, 0, 1024)
	if err := m.Write(0, make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	free(t, m)
	for i, b := range alloc(t, 0, 1024).Host() {
		if b != 0xFF {
			t.Fatalf("byte %d is %#x", i, b)
		}
	}
}

func TestMemoryNumbers(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	numbers := func(device int) (n [5]int64) {
		t.Helper()
		var errs [5]error
		n[0], errs[0] = cudaops.MemoryAllocated(device)
		n[1], errs[1] = cudaops.MaxMemoryAllocated(device)
		n[2], errs[2] = cudaops.MemoryReserved(device)
		n[3], errs[3] = cudaops.MaxMemoryReserved(device)
		n[4], _, errs[4] = cudaops.MemGetInfo(device)
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		return n
	}
	check := func(what string, device int, want [5]int64) {
		t.Helper()
		if got := numbers(device); got != want {
			t.Errorf("%s, card %d: allocated, peak, reserved, peak, free %v; want %v", what, device, got, want)
		}
	}
	check("at first", 0, [5]int64{0, 0, 0, 0, 64 * mib})
	small, large := alloc(t, 0, 513), alloc(t, 0, 12*mib)
	check("two blocks", 0, [5]int64{12*mib + 1024, 12*mib + 1024, 14 * mib, 14 * mib, 50 * mib})
	free(t, large)
	check("one freed", 0, [5]int64{1024, 12*mib + 1024, 14 * mib, 14 * mib, 50 * mib})
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	check("cache emptied", 0, [5]int64{1024, 12*mib + 1024, 2 * mib, 14 * mib, 62 * mib})
	if err := cudaops.ResetPeakMemoryStats(0); err != nil {
		t.Fatal(err)
	}
	check("peaks reset", 0, [5]int64{1024, 1024, 2 * mib, 2 * mib, 62 * mib})
	check("at last", 1, [5]int64{0, 0, 0, 0, 64 * mib})

	s, err := cudaops.MemoryStats(0)
	if err != nil {
		t.Fatal(err)
	}
	all := s.All
	if all.Allocations.Allocated != 2 || all.Allocations.Freed != 1 || all.Segments.Allocated != 2 || all.Segments.Freed != 1 ||
		all.RequestedBytes.Current != 513 || s.SmallPool.AllocatedBytes.Current != 1024 || s.LargePool.AllocatedBytes.Freed != 12*mib ||
		s.InactiveSplitBytes != 2*mib-1024 {
		t.Errorf("statistics %+v", s)
	}
	free(t, small)
}

func TestFractionIsOfTotalMemory(t *testing.T) {
	cudaopstest.Setup(t, "64MiB,32MiB", "")
	held := alloc(t, 0, 20*mib)
	if err := cudaops.SetPerProcessMemoryFraction(0.5); err != nil { // no device named: both
		t.Fatal(err)
	}
	for device, want := range []int64{32 * mib, 16 * mib} {
		l, err := cudaops.MemoryLimit(device)
		if err != nil || l.Bytes != want || l.Source != cudaops.LimitByFraction {
			t.Errorf("card %d: limit %v, %v; want %d", device, l, err, want)
		}
	}
	alloc(t, 0, 12*mib)
	if e := wantOOM(t, 0, 1); e.Largest != 0 || e.Free != 32*mib || e.Limit.Setting != "0.5" {
		t.Errorf("error %+v", e)
	}
	if err := cudaops.SetPerProcessMemoryFraction(0.25, 0); err != nil {
		t.Fatal(err)
	}
	if l, _ := cudaops.MemoryLimit(1); l.Bytes != 16*mib {
		t.Errorf("card 1 has limit %v after card 0 was capped", l)
	}
	if len(held.Host()) != 20*mib {
		t.Error("lowering freed memory in use")
	}
	if err := cudaops.SetPerProcessMemoryFraction(0); err != nil {
		t.Fatalf("fraction 0: %v", err)
	}
	if e := wantOOM(t, 1, 1); e.Limit.Bytes != 0 {
		t.Errorf("error %+v", e)
	}
	if err := cudaops.SetPerProcessMemoryFraction(1); err != nil {
		t.Fatal(err)
	}
	alloc(t, 0, 32*mib)
}

// Fractions, limits and the variable combine to the smallest, which has a name.
func TestCapsCombine(t *testing.T) {
	cudaopstest.SetupEnv(t, map[string]string{"TANDEM_SIM_CARDS": "2x64MiB", "CUDA_DEVICE_LIMIT": "0:48MiB,1:25%"})
	check := func(device int, bytes int64, source cudaops.LimitSource) {
		t.Helper()
		if l, err := cudaops.MemoryLimit(device); err != nil || l.Bytes != bytes || l.Source != source {
			t.Errorf("card %d: limit %v, %v; want %d by %v", device, l, err, bytes, source)
		}
	}
	check(0, 48*mib, cudaops.LimitByVariable)
	check(1, 16*mib, cudaops.LimitByVariable)
	if err := cudaops.SetPerProcessMemoryFraction(0.5); err != nil {
		t.Fatal(err)
	}
	check(0, 32*mib, cudaops.LimitByFraction)
	check(1, 16*mib, cudaops.LimitByVariable)
	if err := cudaops.SetDeviceMemoryLimit(8*mib, 1); err != nil {
		t.Fatal(err)
	}
	check(0, 32*mib, cudaops.LimitByFraction)
	check(1, 8*mib, cudaops.LimitByBytes)
	if e := wantOOM(t, 1, 9*mib); !strings.Contains(e.Error(), "8.00 MiB by SetDeviceMemoryLimit") || !strings.Contains(e.Error(), "a larger cap (SetDeviceMemoryLimit)") {
		t.Errorf("error %q does not name the cap", e)
	}
	if err := cudaops.SetDeviceMemoryLimit(-1); err == nil {
		t.Error("a limit of -1: no error")
	}
	if err := cudaops.SetDeviceMemoryLimit(mib, 0, 2); err == nil {
		t.Error("a card that is not there: no error")
	}
	check(0, 32*mib, cudaops.LimitByFraction)
}

// After out of memory the process is whole: less fits, and old memory still
// holds what it held.
func TestWholeAfterOutOfMemory(t *testing.T) {
	cudaopstest.Setup(t, "8MiB", "")
	kept := alloc(t, 0, 3*mib)
	if err := kept.Write(0, []byte("kept")); err != nil {
		t.Fatal(err)
	}
	e := wantOOM(t, 0, 6*mib)
	if e.Device != 0 || e.Name != "Tandem Simulated Card" || e.Requested != 6*mib || e.Total != 8*mib || e.Free != 5*mib ||
		e.Allocated != 3*mib || e.ReservedUnallocated != 0 || e.Largest != 5*mib || len(e.Others) != 0 {
		t.Errorf("error %+v", e)
	}
	for _, part := range []string{"CUDA out of memory on cuda:0", "a smaller batch", "a lower precision"} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("error %q does not have %q", e, part)
		}
	}
	alloc(t, 0, e.Largest)
	if !bytes.HasPrefix(kept.Host(), []byte("kept")) {
		t.Error("memory in use has changed")
	}
	if s, err := cudaops.MemoryStats(0); err != nil || s.OOMs != 1 {
		t.Errorf("%d out of memory, %v", s.OOMs, err)
	}
}

func TestConcurrentUse(t *testing.T) {
	cudaopstest.Setup(t, "2x8MiB", "")
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			mine := bytes.Repeat([]byte{byte(g)}, 4096)
			for i := range 60 {
				m, err := cudaops.Alloc(g%2, 1+rng.Int64N(2*mib))
				var e *cudaops.OutOfMemoryError
				if errors.As(err, &e) {
					continue
				}
				n := min(m.Len(), 4096)
				got := make([]byte, n)
				if err := errors.Join(err, m.Write(0, mine[:n]), m.Read(0, got)); err != nil || !bytes.Equal(got, mine[:n]) {
					t.Errorf("error %v, or another's bytes", err)
				}
				if _, err := cudaops.MemorySummary(g % 2); err != nil {
					t.Error(err)
				}
				if err := errors.Join(cudaops.SetDevice(g%2), cudaops.ManualSeed(1), m.Free()); err != nil {
					t.Error(err)
				}
				if i%10 == 0 {
					if err := cudaops.EmptyCache(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	for device := range 2 {
		if n, err := cudaops.MemoryReserved(device); n != 0 || err != nil {
			t.Errorf("card %d: %d bytes reserved at the end, %v", device, n, err)
		}
	}
}

// The cards are asked for at every step: that must not make garbage.
func TestLookupDoesNotAllocate(t *testing.T) {
	cudaopstest.Setup(t, "2", "1,0")
	m := alloc(t, 1, 64)
	buf := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		if cudaops.Synchronize(1) != nil || m.Write(0, buf) != nil || m.Read(0, buf) != nil || cudaops.DeviceCount() != 2 {
			t.Fail()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
