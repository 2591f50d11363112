package cudaops_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/internal/ir"
)

var _ ir.EarlyWriter = (*cudaops.Memory)(nil)

// testWriteEarly sends batch after batch through one memory, without waiting, as training does: each must come out whole.
func testWriteEarly(t *testing.T) {
	const size, rounds = 5*mib + 7, 6
	random := rand.NewChaCha8([32]byte{1})
	taken := alloc(t, 0, size)
	// Something else is on its way to the memory when it changes hands.
	if err := errors.Join(taken.Write(0, make([]byte, size)), taken.Free()); err != nil {
		t.Fatal(err)
	}
	stage := alloc(t, 0, size)
	var want [rounds][]byte
	var got [rounds]*cudaops.Memory
	for i := range rounds {
		got[i] = alloc(t, 0, size+10)
		want[i] = make([]byte, size)
		_, _ = random.Read(want[i]) // never fails
		src := bytes.Clone(want[i])
		err := errors.Join(stage.WriteEarly(0, src[:4*mib]), stage.WriteEarly(4*mib, src[4*mib:]))
		clear(src)
		if err := errors.Join(err, got[i].CopyFrom(stage, size)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rounds {
		back := make([]byte, size)
		if err := got[i].Read(0, back); err != nil || !bytes.Equal(back, want[i]) {
			t.Errorf("batch %d: not what was written, %v", i, err)
		}
	}
	// Memory that was written early goes from hand to hand with the write on its way.
	if err := errors.Join(stage.WriteEarly(0, want[0]), stage.Free()); err != nil {
		t.Fatal(err)
	}
	next := alloc(t, 0, size)
	back := make([]byte, size)
	if err := errors.Join(next.Write(0, want[1]), cudaops.Synchronize(0), next.Read(0, back)); err != nil || !bytes.Equal(back, want[1]) {
		t.Errorf("memory that was written early before: not what was written, %v", err)
	}
	if err := errors.Join(next.WriteEarly(0, want[2]), next.Free(), cudaops.EmptyCache()); err != nil {
		t.Error(err)
	}
	for _, m := range got {
		free(t, m)
	}
	if err := stage.WriteEarly(0, want[0]); !errors.Is(err, cudaops.ErrFreed) {
		t.Errorf("write to freed memory: error %v", err)
	}
	if err := next.CopyFrom(got[0], 1); !errors.Is(err, cudaops.ErrFreed) {
		t.Errorf("copy from freed memory: error %v", err)
	}
}

func TestWriteEarly(t *testing.T) {
	cudaopstest.Setup(t, "1x256MiB", "")
	testWriteEarly(t)
}

func TestWriteEarlyReal(t *testing.T) {
	if fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}}) {
		testWriteEarly(t)
	}
}

// TestWriteEarlyFails: what could not be written early is given back like any other memory.
func TestWriteEarlyFails(t *testing.T) {
	for _, function := range []string{"cuEventCreate", "cuStreamCreate", "cuEventRecord"} {
		t.Run(function, func(t *testing.T) {
			from := 1
			if function == "cuStreamCreate" {
				from = 2 // the first is the card's own
			}
			if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Fail: []fakecuda.Failure{{Func: function, Code: cuda.OutOfMemory, From: from}}}) {
				return
			}
			m := alloc(t, 0, 100)
			var e *cuda.Error
			if err := m.WriteEarly(0, make([]byte, 10)); !errors.As(err, &e) || e.Func != function {
				t.Errorf("error %v", err)
			}
			free(t, m)
		})
	}
}

// TestCardWriteEarly is on a card.
func TestCardWriteEarly(t *testing.T) {
	needCard(t)
	testWriteEarly(t)
}

func TestCopyBounds(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	small, large, other := alloc(t, 0, 10), alloc(t, 0, 100), alloc(t, 1, 100)
	for name, err := range map[string]error{
		"from less":         large.CopyFrom(small, 11),
		"to less":           small.CopyFrom(large, 11),
		"from another card": large.CopyFrom(other, 1),
		"of -1 bytes":       large.CopyFrom(small, -1),
	} {
		if err == nil {
			t.Errorf("copy %s: no error", name)
		}
	}
	if err := errors.Join(large.Write(0, []byte("0123456789")), small.CopyFrom(large, 4)); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, 4)
	if err := small.Read(0, back); err != nil || string(back) != "0123" {
		t.Errorf("copied %q, %v", back, err)
	}
}
