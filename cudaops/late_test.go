package cudaops_test

import (
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
)

// testReadLate reads what memory holds at different times, and waits in another order.
func testReadLate(t *testing.T) {
	t.Helper()
	m := alloc(t, 0, 200)
	var waits []func(dst []byte) error
	for i := range byte(5) {
		if err := m.Write(100, []byte{i, 10 + i}); err != nil {
			t.Fatal(err)
		}
		wait, err := m.ReadLate(100, 2)
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, wait)
	}
	for _, i := range []byte{3, 0, 4, 1, 2} {
		got := make([]byte, 2)
		if err := waits[i](got); err != nil || got[0] != i || got[1] != 10+i {
			t.Errorf("read %d gave %v, %v", i, got, err)
		}
	}
	for _, c := range []struct {
		off  int64
		n    int
		says string
	}{{199, 2, "outside memory of 200 bytes"}, {0, 65, "at most 64"}} {
		if _, err := m.ReadLate(c.off, c.n); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d bytes at %d: error %v, want one with %q", c.n, c.off, err, c.says)
		}
	}
}

func TestReadLate(t *testing.T) {
	cudaopstest.Setup(t, "1", "")
	testReadLate(t)
}

func TestReadLateReal(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}}) {
		return
	}
	testReadLate(t)
}
