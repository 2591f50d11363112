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
	for _, bytes := range []int{1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20} {
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
