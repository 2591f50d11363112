package nccl_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/cudaops/internal/nccl"
)

func TestMain(m *testing.M) { fakecuda.Main(m) }

func library(t *testing.T) *nccl.Library {
	t.Helper()
	l, err := nccl.Open()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// group makes a group of ranks that are goroutines and runs f in each.
func group(t *testing.T, l *nccl.Library, world int, f func(rank int, c *nccl.Comm) error) {
	t.Helper()
	id, err := l.NewID()
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, world)
	var ranks sync.WaitGroup
	for r := range world {
		ranks.Go(func() {
			var same nccl.ID
			copy(same.Bytes(), id.Bytes())
			c, err := l.Init(same, r, world)
			if err == nil {
				err = errors.Join(f(r, c), c.AsyncError(), c.Destroy())
			}
			errs[r] = err
		})
	}
	ranks.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// at is where a slice lies, which the fake takes for a card's memory.
func at(x []float32) cuda.Ptr { return cuda.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(x)))) }

// TestCollectives: each function gets its arguments where they belong.
func TestCollectives(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{NCCL: true}) {
		return
	}
	if v := os.Getenv("NCCL_NVLS_ENABLE"); v != "" {
		t.Fatalf("NCCL_NVLS_ENABLE is %q to begin with", v)
	}
	l := library(t)
	if l.Version() != 22800 || !strings.HasSuffix(l.Path(), "libnccl.so.2") {
		t.Errorf("version %d at %s", l.Version(), l.Path())
	}
	if v := os.Getenv("NCCL_NVLS_ENABLE"); v != "0" {
		t.Errorf("NCCL_NVLS_ENABLE is %q", v)
	}
	const world = 3
	group(t, l, world, func(r int, c *nccl.Comm) error {
		own := float32(r + 1)
		expect := func(what string, err error, got []float32, want ...float32) error {
			if err != nil {
				return err
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("rank %d: %s gives %v, want %v", r, what, got, want)
			}
			return nil
		}
		x := []float32{own, 10 * own}
		err := expect("AllReduce", c.AllReduce(at(x), at(x), 2, 0), x, 6, 60)
		x = []float32{own, 10 * own}
		sum := []float32{own, 10 * own}
		if r == 1 {
			sum = []float32{6, 60}
		}
		err = errors.Join(err, expect("Reduce", c.Reduce(at(x), at(x), 2, 1, 0), x, sum...))
		x = []float32{own, 10 * own}
		err = errors.Join(err, expect("Broadcast", c.Broadcast(at(x), at(x), 2, 2, 0), x, 3, 30))
		x = []float32{own, 2 * own, 3 * own}
		err = errors.Join(err, expect("ReduceScatter", c.ReduceScatter(at(x), at(x[r:]), 1, 0), x[r:r+1], 6*own))
		x = make([]float32, world)
		x[r] = own
		err = errors.Join(err, expect("AllGather", c.AllGather(at(x[r:]), at(x), 1, 0), x, 1, 2, 3))
		x, y := []float32{own}, []float32{own}
		err = errors.Join(err, c.Group(func() error {
			return errors.Join(c.AllReduce(at(x), at(x), 1, 0), c.Broadcast(at(y), at(y), 1, 0, 0))
		}))
		return errors.Join(err, expect("Group", nil, append(x, y...), 6, 1))
	})
}

// TestError: a failed call says which, and what the library says of it.
func TestError(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{NCCL: true}) {
		return
	}
	l := library(t)
	group(t, l, 1, func(_ int, c *nccl.Comm) error {
		x := make([]float32, 1)
		err := c.Group(func() error { return c.Broadcast(at(x), at(x), 1, 1, 0) })
		var e *nccl.Error
		if !errors.As(err, &e) || e.Func != "ncclBroadcast" || e.Code != 4 || e.Error() != "ncclBroadcast: invalid argument (4)" {
			t.Errorf("a root that is not there: %v", err)
		}
		return c.AllReduce(at(x), at(x), 1, 0) // the group was ended
	})
	var id nccl.ID
	if _, err := l.Init(id, 2, 1); err == nil || err.Error() != "ncclCommInitRank: invalid argument (4): the fake has its limits" {
		t.Errorf("rank 2 of 1: %v", err)
	}
}

// TestAbort ends a collective that waits for a rank.
func TestAbort(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{NCCL: true}) {
		return
	}
	l := library(t)
	group(t, l, 2, func(r int, c *nccl.Comm) error {
		if r == 1 {
			return nil
		}
		x := make([]float32, 1)
		ended := make(chan error)
		go func() { ended <- c.AllReduce(at(x), at(x), 1, 0) }()
		return errors.Join(c.Abort(), <-ended)
	})
}
