package comm_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tandem-train/tandem/dp/comm"
)

// BenchmarkAllReduce sums buffers of two ranks. MB/s counts one rank's buffer. Beside it, copy moves as much from one
// buffer to another.
func BenchmarkAllReduce(b *testing.B) {
	for _, bytes := range []int{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20} {
		size := fmt.Sprintf("%dKiB", bytes>>10)
		x, y := make([]float32, bytes/4), make([]float32, bytes/4)
		for i := range x { // so that the memory is there
			x[i], y[i] = 0, 0
		}
		for _, kind := range kinds {
			b.Run(kind.name+"/ranks=2/"+size, func(b *testing.B) {
				group := kind.make(b, 2)
				b.SetBytes(int64(bytes))
				b.ReportAllocs()
				b.ResetTimer()
				repeat(b, group, func(c comm.Comm) error {
					return c.AllReduce(context.Background(), [][]float32{x, y}[c.Rank()])
				})
			})
		}
		b.Run("copy/"+size, func(b *testing.B) {
			b.SetBytes(int64(bytes))
			for range b.N {
				copy(x, y)
			}
		})
	}
}

// BenchmarkCollectives makes every call of two ranks with 4 MB.
func BenchmarkCollectives(b *testing.B) {
	const n = 1 << 20
	ctx := context.Background()
	x := [2][]float32{make([]float32, n), make([]float32, n)}
	part := [2][]float32{make([]float32, n/2), make([]float32, n/2)}
	counts := []int{n / 2, n / 2}
	for _, kind := range kinds {
		for name, call := range map[string]func(c comm.Comm, r int) error{
			"broadcast":      func(c comm.Comm, r int) error { return c.Broadcast(ctx, x[r], 0) },
			"reduce":         func(c comm.Comm, r int) error { return c.Reduce(ctx, x[r], 0) },
			"all_reduce":     func(c comm.Comm, r int) error { return c.AllReduce(ctx, x[r]) },
			"reduce_scatter": func(c comm.Comm, r int) error { return c.ReduceScatter(ctx, x[r]) },
			"all_gather":     func(c comm.Comm, r int) error { return c.AllGather(ctx, x[r]) },
			"scatter":        func(c comm.Comm, r int) error { return c.Scatter(ctx, part[r], x[r], counts, 0) },
			"gather":         func(c comm.Comm, r int) error { return c.Gather(ctx, x[r], part[r], counts, 0) },
		} {
			b.Run(name+"/"+kind.name, func(b *testing.B) {
				group := kind.make(b, 2)
				b.SetBytes(4 * n)
				b.ResetTimer()
				repeat(b, group, func(c comm.Comm) error { return call(c, c.Rank()) })
			})
		}
	}
}

// BenchmarkBarrier is what it costs that ranks meet.
func BenchmarkBarrier(b *testing.B) {
	for _, kind := range kinds {
		for _, world := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%s/ranks=%d", kind.name, world), func(b *testing.B) {
				repeat(b, kind.make(b, world), func(c comm.Comm) error { return c.Barrier(context.Background()) })
			})
		}
	}
}

// kinds are the implementations that run in one process.
var kinds = []struct {
	name string
	make func(b *testing.B, world int) []comm.Comm
}{
	{"local", func(b *testing.B, world int) []comm.Comm {
		group, err := comm.NewLocal(world)
		if err != nil {
			b.Fatal(err)
		}
		return group
	}},
	{"shared", func(b *testing.B, world int) []comm.Comm {
		group := comm.NewShared(b, world)
		b.Cleanup(func() {
			for _, c := range group {
				if err := c.Close(); err != nil {
					b.Error(err)
				}
			}
		})
		return group
	}},
}

// repeat makes a call b.N times on all ranks.
func repeat(b *testing.B, group []comm.Comm, call func(c comm.Comm) error) {
	done := make(chan error, len(group))
	for _, c := range group {
		go func() {
			for range b.N {
				if err := call(c); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range group {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
