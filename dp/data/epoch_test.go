package data

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"gorgonia.org/tensor"
)

// depths are the ways to run an epoch: on demand, and ahead a little or far.
var depths = []int{0, 1, 3, 100}

// watched counts the reads of a dataset.
func watched(ds Dataset) (Dataset, *atomic.Int64) {
	reads := new(atomic.Int64)
	return hooked{ds, func(context.Context, []int) error { reads.Add(1); return nil }}, reads
}

// At most depth batches are made ahead of the one in the body's hands.
func TestPrefetchIsBounded(t *testing.T) {
	for _, depth := range depths {
		synctest.Test(t, func(t *testing.T) {
			ds, reads := watched(rows(t, 40))
			l := newLoader(t, ds, 2, Prefetch(depth))
			for b, err := range l.Epoch(t.Context(), 0) {
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // the prefetcher has come as far as it can
				if got, want := reads.Load(), int64(min(b.Step+1+depth, l.Batches())); got != want {
					t.Fatalf("depth %d: %d batches made at step %d, want %d", depth, got, b.Step, want)
				}
			}
		})
	}
}

// Breaking out stops the prefetcher before the loop is left.
func TestBreak(t *testing.T) {
	for _, depth := range depths {
		synctest.Test(t, func(t *testing.T) {
			ds, reads := watched(rows(t, 1000))
			for b, err := range newLoader(t, ds, 1, Prefetch(depth)).Epoch(t.Context(), 0) {
				if err != nil {
					t.Fatal(err)
				}
				if b.Step == 3 {
					break
				}
			}
			after := reads.Load()
			synctest.Wait()
			if got := reads.Load(); got != after {
				t.Errorf("depth %d: %d batches were made after the loop", depth, got-after)
			}
		})
	}
}

// The tensors go round: as many as are prefetched and one more, and one of
// another shape for the last batch. Their data hold still during the body.
func TestBuffersAreReused(t *testing.T) {
	for _, depth := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			seen := map[*tensor.Dense]bool{}
			for b, err := range newLoader(t, rows(t, 101), 2, Prefetch(depth)).Epoch(t.Context(), 0) {
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got := b.X.Data().([]float32)[0]; got != float32(2*b.Step) {
					t.Fatalf("depth %d: step %d begins with sample %v", depth, b.Step, got)
				}
				seen[b.X] = true
			}
			if len(seen) != depth+2 {
				t.Errorf("depth %d: %d tensors, want %d", depth, len(seen), depth+2)
			}
		})
	}
}

func TestContextEnds(t *testing.T) {
	cause := errors.New("the disk is full")
	for _, depth := range depths {
		for _, at := range []int{-1, 0, 4} { // -1: before the loop
			ctx, cancel := context.WithCancelCause(t.Context())
			if at < 0 {
				cancel(cause)
			}
			var last error
			steps := 0
			for b, err := range newLoader(t, rows(t, 20), 2, Prefetch(depth)).Epoch(ctx, 7) {
				if last = err; err != nil {
					if b != nil {
						t.Errorf("an error and a batch")
					}
					continue // the loop must end by itself
				}
				if steps++; b.Step == at {
					cancel(cause)
				}
			}
			cancel(nil)
			if steps != at+1 {
				t.Errorf("depth %d: %d batches, want %d", depth, steps, at+1)
			}
			want := fmt.Sprintf("data: epoch 7, batch %d of 10: context canceled: the disk is full", at+1)
			if !errors.Is(last, context.Canceled) || !errors.Is(last, cause) || last.Error() != want {
				t.Errorf("depth %d: error %v, want %q", depth, last, want)
			}
		}
	}
}

// A context that ends while the dataset is reading ends the read and the loop.
func TestContextEndsInDataset(t *testing.T) {
	for _, depth := range depths {
		ctx, cancel := context.WithCancel(t.Context())
		ds := hooked{rows(t, 20), func(ctx context.Context, indices []int) error {
			if indices[0] < 6 {
				return nil
			}
			cancel()
			<-ctx.Done()
			return errors.New("read interrupted")
		}}
		var last error
		for _, err := range newLoader(t, ds, 2, Prefetch(depth)).Epoch(ctx, 0) {
			last = err
		}
		if !errors.Is(last, context.Canceled) || strings.Contains(last.Error(), "interrupted") {
			t.Errorf("depth %d: error %v", depth, last)
		}
	}
}

// Leaving the loop ends a read that is under way.
func TestBreakEndsRead(t *testing.T) {
	ds := hooked{rows(t, 20), func(ctx context.Context, indices []int) error {
		if indices[0] < 2 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	for _, err := range newLoader(t, ds, 2).Epoch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
}

// A dataset's error ends the epoch, after the batches before it.
func TestDatasetFails(t *testing.T) {
	broken := errors.New("broken")
	for _, depth := range depths {
		for want, fail := range map[string]error{
			"data: epoch 1, batch 3 of 10: sample 7: broken":                 &SampleError{Index: 7, Err: broken},
			"data: epoch 1, batch 3 of 10: reading samples [6 7]: broken":    broken,
			"data: epoch 1, batch 3 of 10: reading: sample 7: broken (disk)": fmt.Errorf("reading: %w (disk)", &SampleError{Index: 7, Err: broken}),
		} {
			ds := hooked{rows(t, 20), func(_ context.Context, indices []int) error {
				if indices[0] == 6 {
					return fail
				}
				return nil
			}}
			var last error
			steps := 0
			for _, err := range newLoader(t, ds, 2, Prefetch(depth)).Epoch(t.Context(), 1) {
				if last = err; err == nil {
					steps++
				}
			}
			if steps != 3 || last == nil || last.Error() != want || !errors.Is(last, broken) {
				t.Errorf("depth %d: %d batches, then %v, want 3 and %q", depth, steps, last, want)
			}
		}
	}
}

func TestLongListsAreCut(t *testing.T) {
	broken := errors.New("broken")
	ds := hooked{rows(t, 20), func(context.Context, []int) error { return broken }}
	for _, err := range newLoader(t, ds, 20).Epoch(t.Context(), 0) {
		if want := "data: epoch 0, batch 0 of 1: reading samples [0 1 2 3 4 5 6 7] and 12 more: broken"; err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
