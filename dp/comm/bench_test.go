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
		b.Run("ranks=2/"+size, func(b *testing.B) {
			group, err := comm.NewLocal(2)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			b.ResetTimer()
			other := make(chan error)
			go func() {
				for range b.N {
					if err := group[1].AllReduce(context.Background(), y); err != nil {
						other <- err
						return
					}
				}
				other <- nil
			}()
			for range b.N {
				if err := group[0].AllReduce(context.Background(), x); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-other; err != nil {
				b.Fatal(err)
			}
		})
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
	for _, world := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("ranks=%d", world), func(b *testing.B) {
			group, err := comm.NewLocal(world)
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan error, world)
			for _, c := range group {
				go func() {
					for range b.N {
						if err := c.Barrier(context.Background()); err != nil {
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
		})
	}
}
