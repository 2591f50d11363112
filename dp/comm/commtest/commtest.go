// Package commtest tests implementations of comm.Comm: what every collective does, in which order sums are taken, what breaks
// a group and how it says so, and that calls allocate nothing.
//
//	func TestLocal(t *testing.T) {
//		commtest.Run(t, func(t *testing.T, world int) []comm.Comm { ... })
//	}
//
// [RunRemote] is for groups whose ranks are as if in several processes.
package commtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
)

// Open makes a group of world ranks for one test, and closes it when the test ends. Its limit for waiting must be long: the
// suite never lets it pass.
type Open = func(t *testing.T, world int) []comm.Comm

// Run tests the groups that open makes, whose ranks share errors.
func Run(t *testing.T, open Open) { run(t, open, errors.Is) }

// RunRemote tests groups whose ranks are as if in several processes: an error that one rank made reaches the others as text.
func RunRemote(t *testing.T, open Open) {
	run(t, open, func(err, target error) bool {
		return errors.Is(err, target) || err != nil && strings.Contains(err.Error(), target.Error())
	})
}

// run tests groups, in which is reports whether an error is or wraps another one that may be another rank's.
func run(t *testing.T, open Open, is func(err, target error) bool) {
	for _, world := range []int{1, 2, 3, 4, 7} {
		t.Run(fmt.Sprintf("world=%d", world), func(t *testing.T) {
			t.Run("Identity", func(t *testing.T) { testIdentity(t, open(t, world)) })
			t.Run("Collectives", func(t *testing.T) { testCollectives(t, open(t, world)) })
			t.Run("Float64", func(t *testing.T) { testFloat64(t, open(t, world)) })
			t.Run("Barrier", func(t *testing.T) { testBarrier(t, open(t, world)) })
			t.Run("Sequences", func(t *testing.T) { testSequences(t, open(t, world)) })
			t.Run("ForProgram", func(t *testing.T) { testForProgram(t, open(t, world)) })
			t.Run("Allocations", func(t *testing.T) { testAllocations(t, open(t, world)) })
			t.Run("Failures", func(t *testing.T) { testFailures(t, open, world, is) })
		})
	}
}

// each runs f for every rank at once and returns their errors, by rank.
func each(group []comm.Comm, f func(c comm.Comm) error) []error {
	errs := make([]error, len(group))
	var ranks sync.WaitGroup
	for r, c := range group {
		ranks.Go(func() { errs[r] = f(c) })
	}
	ranks.Wait()
	return errs
}

// must fails the test if a rank has failed.
func must(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

// call is a collective among the first Group ranks, with the data before and after.
type call struct {
	comm.Call
	before, after [][]float32 // by rank; of Scatter and Gather the whole, in place of root
	parts         [][]float32 // of Scatter and Gather, by rank
}

// newCall makes random data and the result that is due. Every sum is taken in rank order.
func newCall(rng *rand.Rand, c comm.Call) *call {
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64() * math.Exp(4*rng.NormFloat64()))
		}
		return x
	}
	k := &call{Call: c}
	for r := range c.Group {
		n := c.Len
		if c.Op == comm.OpScatter || c.Op == comm.OpGather {
			k.parts = append(k.parts, random(c.Counts[r]))
			if r != c.Root {
				n = 0
			}
		}
		x := random(n)
		k.before = append(k.before, x)
		k.after = append(k.after, append([]float32(nil), x...))
	}
	sum := func(i int) (s float32) {
		s = k.before[0][i]
		for _, x := range k.before[1:] {
			s += x[i]
		}
		return s
	}
	for r, y := range k.after {
		lo, hi := ir.ShareOf(c.Len, r, c.Group)
		for i := range y {
			switch c.Op {
			case comm.OpBroadcast:
				y[i] = k.before[c.Root][i]
			case comm.OpAllReduce:
				y[i] = sum(i)
			case comm.OpReduce:
				if r == c.Root {
					y[i] = sum(i)
				}
			case comm.OpReduceScatter:
				if lo <= i && i < hi {
					y[i] = sum(i)
				}
			case comm.OpAllGather:
				q := (c.Len + c.Group - 1) / c.Group
				y[i] = k.before[i/q][i]
			}
		}
	}
	lo := 0
	for _, part := range k.parts {
		whole := k.after[c.Root][lo : lo+len(part)]
		if c.Op == comm.OpScatter {
			copy(part, whole)
		} else {
			copy(whole, part)
		}
		lo += len(part)
	}
	return k
}

// run makes the call on one rank of the whole group, and checks its result bit for bit.
func (k *call) run(ctx context.Context, c comm.Comm) error {
	r := c.Rank()
	if r >= k.Group {
		return nil
	}
	c, err := c.Sub(k.Group)
	if err != nil {
		return err
	}
	buf := append([]float32(nil), k.before[r]...)
	lo, hi := 0, len(buf)
	switch k.Op {
	case comm.OpBroadcast:
		err = c.Broadcast(ctx, buf, k.Root)
	case comm.OpReduce:
		err = c.Reduce(ctx, buf, k.Root)
	case comm.OpAllReduce:
		err = c.AllReduce(ctx, buf)
	case comm.OpReduceScatter:
		err = c.ReduceScatter(ctx, buf)
		lo, hi = ir.ShareOf(len(buf), r, k.Group) // the rest is undefined
	case comm.OpAllGather:
		err = c.AllGather(ctx, buf)
	case comm.OpScatter:
		dst := make([]float32, k.Counts[r])
		if err = c.Scatter(ctx, dst, buf, k.Counts, k.Root); err == nil {
			err = same("dst", k.parts[r], dst, 0)
		}
	case comm.OpGather:
		src := append([]float32(nil), k.parts[r]...)
		if err = c.Gather(ctx, buf, src, k.Counts, k.Root); err == nil {
			err = same("src", k.parts[r], src, 0)
		}
	case comm.OpBarrier:
		err = c.Barrier(ctx)
	}
	if err == nil {
		err = same("buf", k.after[r][lo:hi], buf[lo:hi], lo)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", k.Call, err)
	}
	return nil
}

// same compares bits. The elements start at index from.
func same(what string, want, got []float32, from int) error {
	for i, w := range want {
		if math.Float32bits(got[i]) != math.Float32bits(w) {
			return fmt.Errorf("%s[%d] = %g, want %g", what, from+i, got[i], w)
		}
	}
	return nil
}

// uneven are counts of about n elements in all, some of them none.
func uneven(rng *rand.Rand, world, n int) (counts []int, total int) {
	counts = make([]int, world)
	for r := range counts {
		if rng.IntN(4) > 0 {
			counts[r] = rng.IntN(2*n/world + 1)
		}
		total += counts[r]
	}
	return counts, total
}
