package dp_test

import (
	"slices"
	"testing"

	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/nn"
)

// TestBuckets: the last layers come first, small ones together, and what is left is a bucket of its own.
func TestBuckets(t *testing.T) {
	const biases = 32 // room of a small bias
	for _, c := range []struct {
		name  string
		model nn.Module
		bytes int
		want  []int // elements
	}{
		{"small", nn.Linear(100, 10), 1 << 20, []int{biases + 1024}},
		{"mlp", nn.Sequential(nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)), 1 << 20, []int{biases + 5120 + 512 + 512*512, 512 + 784*512}},
		{"a small first layer", nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1<<16)), 1 << 20, []int{1<<16 + 1<<20, 32 + 256}},
		{"large", nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 4096)), 25 << 20, []int{4096 + 1<<24, 4096 + 1<<24, 4096 + 1<<24}},
	} {
		l, err := nn.NewLayout(c.model)
		if err != nil {
			t.Fatal(err)
		}
		var want []data.Range
		at := 0
		for _, n := range c.want {
			want = append(want, data.Range{Lo: at, Hi: at + n})
			at += n
		}
		if got := dp.Buckets(l, c.bytes/4); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}

// TestBucketBytes: buckets grow with the gradients, slower than they do: those of a small network are about one, those of a large one a few dozen.
func TestBucketBytes(t *testing.T) {
	for _, c := range []struct{ gradients, buckets int }{
		{1 << 20, 1}, {4 << 20, 2}, {1 << 30, 32},
	} {
		size := dp.BucketSize(c.gradients)
		if n := (c.gradients + size - 1) / size; n != c.buckets {
			t.Errorf("%d bytes are %d buckets of %d bytes, want %d", c.gradients, n, size, c.buckets)
		}
	}
}
