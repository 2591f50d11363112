package commtest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
)

var ops = []comm.Op{comm.OpBroadcast, comm.OpReduce, comm.OpAllReduce, comm.OpReduceScatter, comm.OpAllGather,
	comm.OpScatter, comm.OpGather, comm.OpBarrier}

func testIdentity(t *testing.T, group []comm.Comm) {
	for r, c := range group {
		if c.Rank() != r || c.Size() != len(group) {
			t.Fatalf("end %d of %d is rank %d of %d", r, len(group), c.Rank(), c.Size())
		}
		for k := -1; k <= len(group)+1; k++ {
			sub, err := c.Sub(k)
			if k <= r || k > len(group) {
				if err == nil {
					t.Fatalf("rank %d of %d: Sub(%d) gave no error", r, len(group), k)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if sub.Rank() != r || sub.Size() != k {
				t.Fatalf("rank %d: Sub(%d) is rank %d of %d", r, k, sub.Rank(), sub.Size())
			}
			if again, err := c.Sub(k); err != nil || again != sub {
				t.Fatalf("rank %d: Sub(%d) gave another Comm the second time, error %v", r, k, err)
			}
		}
	}
}

// testCollectives makes every call with lengths that leave ranks without a share, that one rank can work on for all, and that
// are worked on in pieces: for every root, or, as long data takes long to make, the last.
func testCollectives(t *testing.T, group []comm.Comm) {
	rng := rand.New(rand.NewPCG(1, uint64(len(group))))
	var calls []*call
	for _, n := range []int{0, 1, 2, 13, 4096, 20011} {
		for _, op := range ops {
			for root := range group {
				if n > 13 && root < len(group)-1 {
					continue
				}
				c := comm.Call{Group: len(group), Op: op, Len: n, Root: root}
				switch op {
				case comm.OpAllReduce, comm.OpReduceScatter, comm.OpAllGather, comm.OpBarrier:
					if root < len(group)-1 {
						continue
					}
				case comm.OpScatter, comm.OpGather:
					c.Counts, c.Len = uneven(rng, len(group), n)
				}
				if op == comm.OpBarrier {
					c.Len = 0
				}
				calls = append(calls, newCall(rng, c))
			}
		}
	}
	must(t, each(group, func(c comm.Comm) error {
		for _, k := range calls {
			if err := k.run(t.Context(), c); err != nil {
				return err
			}
		}
		return nil
	}))
}

// testFloat64 compares a sum with float64: within one rounding a term.
func testFloat64(t *testing.T, group []comm.Comm) {
	const n = 10007
	k := newCall(rand.New(rand.NewPCG(2, uint64(len(group)))), comm.Call{Group: len(group), Op: comm.OpAllReduce, Len: n})
	must(t, each(group, func(c comm.Comm) error {
		got := append([]float32(nil), k.before[c.Rank()]...)
		if err := c.AllReduce(t.Context(), got); err != nil {
			return err
		}
		for i, g := range got {
			sum, size := 0.0, 0.0
			for _, x := range k.before {
				sum += float64(x[i])
				size += math.Abs(float64(x[i]))
			}
			if d := math.Abs(float64(g) - sum); !(d <= size*float64(len(group))*0x1p-24) {
				return fmt.Errorf("sum[%d] = %g, want %g", i, g, sum)
			}
		}
		return nil
	}))
}

// testBarrier checks that no rank leaves a barrier before all have come.
func testBarrier(t *testing.T, group []comm.Comm) {
	var came atomic.Int64
	must(t, each(group, func(c comm.Comm) error {
		for round := range int64(200) {
			came.Add(1)
			if err := c.Barrier(t.Context()); err != nil {
				return err
			}
			if n := came.Load(); n < (round+1)*int64(len(group)) {
				return fmt.Errorf("left barrier %d when %d arrivals were made", round, n)
			}
		}
		return nil
	}))
}

// testSequences makes random calls, with groups of all sizes mixed.
func testSequences(t *testing.T, group []comm.Comm) {
	rng := rand.New(rand.NewPCG(3, uint64(len(group))))
	var calls []*call
	for range 300 {
		size := 1 + rng.IntN(len(group))
		c := comm.Call{Group: size, Op: ops[rng.IntN(len(ops))], Len: rng.IntN(40), Root: rng.IntN(size)}
		if rng.IntN(4) == 0 {
			c.Len = rng.IntN(12000)
		}
		switch c.Op {
		case comm.OpScatter, comm.OpGather:
			c.Counts, c.Len = uneven(rng, size, c.Len)
		case comm.OpBarrier:
			c.Len = 0
		}
		calls = append(calls, newCall(rng, c))
	}
	must(t, each(group, func(c comm.Comm) error {
		for i, k := range calls {
			if err := k.run(t.Context(), c); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		return nil
	}))
}

// testForProgram runs a program's collectives with every number of active ranks.
func testForProgram(t *testing.T, group []comm.Comm) {
	kinds := map[ir.CollectiveKind]comm.Op{ir.AllReduce: comm.OpAllReduce, ir.ReduceTo: comm.OpReduce, ir.BroadcastFrom: comm.OpBroadcast,
		ir.ReduceScatter: comm.OpReduceScatter, ir.AllGather: comm.OpAllGather}
	rng := rand.New(rand.NewPCG(4, uint64(len(group))))
	for active := range len(group) + 1 {
		for kind, op := range kinds {
			for _, activeOnly := range []bool{false, true} {
				size := len(group)
				if activeOnly {
					size = active
				}
				if size == 0 {
					continue
				}
				k := newCall(rng, comm.Call{Group: size, Op: op, Len: 101, Root: size - 1})
				must(t, each(group, func(c comm.Comm) error {
					p, err := comm.ForProgram(c, active)
					if err != nil {
						return err
					}
					r := c.Rank()
					buf := []float32{1, 2, 3}
					want, lo, hi := []float32{1, 2, 3}, 0, 3 // of a rank that has no part
					if r < size {
						buf, want, lo, hi = append([]float32(nil), k.before[r]...), k.after[r], 0, k.Len
						if op == comm.OpReduceScatter {
							lo, hi = ir.ShareOf(k.Len, r, size)
						}
					}
					if err := p.Collective(t.Context(), ir.Collective{Kind: kind, Root: k.Root, ActiveOnly: activeOnly}, buf); err != nil {
						return err
					}
					if err := same("buf", want[lo:hi], buf[lo:hi], lo); err != nil {
						return fmt.Errorf("%v, %d active: %w", k.Call, active, err)
					}
					return nil
				}))
			}
		}
	}
	for _, active := range []int{-1, len(group) + 1} {
		if _, err := comm.ForProgram(group[0], active); err == nil {
			t.Errorf("ForProgram with %d active ranks of %d gave no error", active, len(group))
		}
	}
}

// testAllocations checks that calls allocate nothing, with a context that can end and one that can't.
func testAllocations(t *testing.T, group []comm.Comm) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	world := len(group)
	counts := make([]int, world)
	for r := range counts {
		counts[r] = r * 700
	}
	total := 700 * world * (world - 1) / 2
	step := func(c comm.Comm, p ir.Comm, buf, part []float32) error {
		for _, ctx := range []context.Context{context.Background(), ctx} {
			for _, buf := range [][]float32{buf, buf[:10]} {
				if err := c.Broadcast(ctx, buf, world-1); err != nil {
					return err
				}
				if err := c.Reduce(ctx, buf, 0); err != nil {
					return err
				}
				if err := c.AllReduce(ctx, buf); err != nil {
					return err
				}
				if err := c.ReduceScatter(ctx, buf); err != nil {
					return err
				}
				if err := c.AllGather(ctx, buf); err != nil {
					return err
				}
				if err := p.Collective(ctx, ir.Collective{ActiveOnly: true}, buf); err != nil {
					return err
				}
			}
			if err := c.Scatter(ctx, part, buf[:total], counts, 0); err != nil {
				return err
			}
			if err := c.Gather(ctx, buf[:total], part, counts, 0); err != nil {
				return err
			}
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			sub, err := c.Sub(world)
			if err != nil {
				return err
			}
			if err := sub.AllReduce(ctx, buf[:1]); err != nil {
				return err
			}
		}
		return nil
	}
	start, done := make([]chan struct{}, world), make(chan error)
	for r, c := range group {
		start[r] = make(chan struct{})
		defer close(start[r])
		p, err := comm.ForProgram(c, (world+1)/2)
		if err != nil {
			t.Fatal(err)
		}
		buf, part := make([]float32, max(total, 10000)), make([]float32, counts[r])
		go func() {
			for range start[r] {
				done <- step(c, p, buf, part)
			}
		}()
	}
	allocs := testing.AllocsPerRun(20, func() {
		for _, s := range start {
			s <- struct{}{}
		}
		for range group {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations in a round of calls, want none", allocs)
	}
}
