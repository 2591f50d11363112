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

func TestReadMaps(t *testing.T) {
	const a, b = "GPU-aa", "GPU-bb"
	maps := "55d0-55e0 r-xp 00000000 fe:00 12 /bin/train\n" +
		"7f0000000000-7f0000200000 ---s 00000000 00:01 7 /memfd:tandem-" + a + " (deleted)\n" +
		"7f0001000000-7f0001001000 ---s 00000000 00:01 8 /memfd:tandem-" + a + " (deleted)\n" +
		"7f0002000000-7f0002002000 ---s 00000000 00:01 9 /memfd:tandem-" + b + "\n"
	m := Machine{Cards: []Card{{Properties: cudaops.Properties{UUID: a, Simulated: true}}, {Properties: cudaops.Properties{UUID: b, Simulated: true}}}}
	if err := m.seeUse(fstest.MapFS{"12/maps": {Data: []byte(maps)}, "13/stat": {}, "self": {}}); err != nil {
		t.Fatal(err)
	}
	if m.Cards[0].MemoryUsed != 2<<20+4096 || m.Cards[1].MemoryUsed != 8192 || len(m.Cards[0].Processes) != 1 || m.Cards[0].Processes[0].PID != 12 {
		t.Errorf("got %+v", m.Cards)
	}
	if _, err := simulatedMemory("x-7f ---s 0 0 0 /memfd:tandem-GPU-aa\n"); err == nil || !strings.Contains(err.Error(), "x-7f") {
		t.Errorf("damaged addresses gave %v", err)
	}
}
