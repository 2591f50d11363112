package machine

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

// TestSeeUse finds this process's memory on one of two simulated cards, and no more when it is given back.
func TestSeeUse(t *testing.T) {
	if _, err := os.Stat("/proc/self/maps"); err != nil {
		t.Skip(err)
	}
	cudaopstest.Setup(t, "2x64MiB", "1,0")
	seen := func() (m Machine, own int64) {
		m, err := Inspect()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.SeeUse(); err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Cards[1].Processes {
			if p.PID == os.Getpid() {
				own += p.Bytes
			}
		}
		return m, own
	}
	_, before := seen()
	mem, err := cudaops.Alloc(0, 12<<20) // physical card 1
	if err != nil {
		t.Fatal(err)
	}
	if m, own := seen(); own-before != 12<<20 || m.Cards[1].MemoryUsed < own {
		t.Errorf("%d bytes of card 1 are this process's, %d before, %d all: want 12 MiB more", own, before, m.Cards[1].MemoryUsed)
	}
	if err := mem.Free(); err != nil {
		t.Fatal(err)
	}
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	if _, own := seen(); own != before {
		t.Errorf("%d bytes are seen after all was given back, %d before", own, before)
	}
}

// TestSeeLimits finds the limit that this process has set on a simulated card, the newest of several, and none that was lifted.
func TestSeeLimits(t *testing.T) {
	if _, err := os.Stat("/proc/self/maps"); err != nil {
		t.Skip(err)
	}
	cudaopstest.SetupEnv(t, map[string]string{"TANDEM_SIM_CARDS": "2x64MiB", "CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_LIMIT": "1:32MiB"})
	own := func(card int) (int64, bool) {
		t.Helper()
		m, err := Inspect()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.SeeUse(); err != nil {
			t.Fatal(err)
		}
		limit, ok := m.Cards[card].Limits[os.Getpid()]
		return limit, ok
	}
	if _, err := cudaops.AvailableDevices(); err != nil {
		t.Fatal(err)
	}
	if n, ok := own(0); n != 32<<20 {
		t.Errorf("by the variable: %d bytes, %t", n, ok)
	}
	if n, ok := own(1); ok {
		t.Errorf("a card without a limit has one of %d bytes", n)
	}
	for _, fraction := range []float64{0.5, 0.25} {
		if err := cudaops.SetPerProcessMemoryFraction(fraction, 0); err != nil { // physical card 1
			t.Fatal(err)
		}
		if n, ok := own(1); n != int64(fraction*(64<<20)) {
			t.Errorf("fraction %v: %d bytes, %t", fraction, n, ok)
		}
	}
	if err := cudaops.SetPerProcessMemoryFraction(1, 0); err != nil {
		t.Fatal(err)
	}
	if n, ok := own(1); ok {
		t.Errorf("a limit of %d bytes after it was lifted", n)
	}
}

func TestReadMaps(t *testing.T) {
	const a, b = "GPU-aa", "GPU-bb"
	maps := "55d0-55e0 r-xp 00000000 fe:00 12 /bin/train\n" +
		"7f0000000000-7f0000200000 ---s 00000000 00:01 7 /memfd:tandem-" + a + " (deleted)\n" +
		"7f0001000000-7f0001001000 ---s 00000000 00:01 8 /memfd:tandem-" + a + " (deleted)\n" +
		"7f0002000000-7f0002002000 ---s 00000000 00:01 9 /memfd:tandem-" + b + "\n" +
		"7f0003000000-7f0003001000 ---s 00000000 00:01 9 /memfd:tandem-limit-" + b + "-1073741825 (deleted)\n"
	m := Machine{Cards: []Card{{Properties: cudaops.Properties{UUID: a, Simulated: true}}, {Properties: cudaops.Properties{UUID: b, Simulated: true}}}}
	if err := m.seeUse(fstest.MapFS{"12/maps": {Data: []byte(maps)}, "13/stat": {}, "self": {}}); err != nil {
		t.Fatal(err)
	}
	if m.Cards[0].MemoryUsed != 2<<20+4096 || m.Cards[1].MemoryUsed != 8192 || len(m.Cards[0].Processes) != 1 || m.Cards[0].Processes[0].PID != 12 {
		t.Errorf("got %+v", m.Cards)
	}
	if m.Cards[0].Limits != nil || len(m.Cards[1].Limits) != 1 || m.Cards[1].Limits[12] != 1<<30+1 {
		t.Errorf("limits %v and %v, want 1 GiB and a byte of process 12 on the second card", m.Cards[0].Limits, m.Cards[1].Limits)
	}
	if _, _, err := readMarks("7f00-7f01 ---s 0 0 0 /memfd:tandem-limit-GPU-aa\n"); err == nil || !strings.Contains(err.Error(), "limit-GPU-aa") {
		t.Errorf("a damaged limit gave %v", err)
	}
	if _, _, err := readMarks("x-7f ---s 0 0 0 /memfd:tandem-GPU-aa\n"); err == nil || !strings.Contains(err.Error(), "x-7f") {
		t.Errorf("damaged addresses gave %v", err)
	}
}
