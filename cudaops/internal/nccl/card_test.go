package nccl_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/nccl"
	"github.com/tandem-train/tandem/internal/ir"
)

// TestCardAllReduce sums on all cards of the machine, in a stream and in a graph, and logs how long that takes.
func TestCardAllReduce(t *testing.T) {
	api, err := cuda.Load()
	if err != nil {
		t.Skipf("no card: %v", err)
	}
	world, err := api.DeviceCount()
	if err != nil {
		t.Fatal(err)
	}
	if world < 2 {
		t.Skip("this machine has one card")
	}
	l, err := nccl.Open()
	if err != nil {
		t.Fatal(err)
	}
	id, err := l.NewID()
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, world)
	var ranks sync.WaitGroup
	for r := range world {
		ranks.Go(func() {
			card, err := api.OpenCard(r)
			if err == nil {
				err = card.Do(func() error { return allReduces(t, l, card, id, r, world) })
				err = errors.Join(err, card.Close())
			}
			errs[r] = err
		})
	}
	ranks.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func allReduces(t *testing.T, l *nccl.Library, card *cuda.Card, id nccl.ID, r, world int) error {
	const most = 256 << 20 // elements
	start := time.Now()
	c, err := l.Init(id, r, world)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) {
		if r == 0 {
			t.Logf(format, args...)
		}
	}
	say("NCCL %d at %s, ready after %v", l.Version(), l.Path(), time.Since(start))
	at, err := card.MemAlloc(4 * most)
	if err != nil {
		return err
	}
	s := card.Stream
	for _, n := range []int{1, 256, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, most} {
		if err := sums(card, c, at, n, r, world); err != nil {
			return fmt.Errorf("%d elements: %w", n, err)
		}
		const inGraph = 10
		repeat := func() error {
			for range inGraph {
				if err := c.AllReduce(at, at, n, s); err != nil {
					return err
				}
			}
			return nil
		}
		timed := func(f func() error) (time.Duration, error) {
			if err := errors.Join(f(), card.StreamSynchronize(s)); err != nil {
				return 0, err
			}
			start := time.Now()
			err := errors.Join(f(), f(), f(), card.StreamSynchronize(s))
			return time.Since(start) / (3 * inGraph), err
		}
		if err := card.MemsetD8(at, 0, 4*n, s); err != nil {
			return err
		}
		eager, err := timed(repeat)
		if err != nil {
			return err
		}
		made, err := card.Capture(s, repeat)
		if err != nil {
			return err
		}
		captured, err := timed(func() error { return card.GraphLaunch(made, s) })
		if err = errors.Join(err, card.GraphExecDestroy(made)); err != nil {
			return err
		}
		say("all-reduce of %10d bytes: %v in a stream, %v in a graph, %.1f GB/s", 4*n, eager, captured, 4*float64(n)/captured.Seconds()/1e9)
	}
	return errors.Join(card.MemFree(at), c.Destroy())
}

// sums checks the sum of numbers that are different on every rank and in every place.
func sums(card *cuda.Card, c *nccl.Comm, at cuda.Ptr, n, r, world int) error {
	p, err := card.MemHostAlloc(4 * n)
	if err != nil {
		return err
	}
	x := ir.Words[float32](p.Bytes())
	for i := range x {
		x[i] = float32((i%1000)*world + r)
	}
	err = errors.Join(card.MemcpyHtoD(at, p, 0, 4*n, card.Stream), c.AllReduce(at, at, n, card.Stream), card.MemcpyDtoH(p, 0, at, 4*n, card.Stream), card.StreamSynchronize(card.Stream))
	for i := range x {
		if want := float32(world*((i%1000)*world) + world*(world-1)/2); err == nil && x[i] != want {
			err = fmt.Errorf("element %d is %v, want %v", i, x[i], want)
		}
	}
	return errors.Join(err, card.MemFreeHost(p))
}
