package data

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorgonia.org/tensor"
)

func TestNewLoaderErrors(t *testing.T) {
	ds := rows(t, 10)
	empty := sized{ds, 0}
	for _, tt := range []struct {
		ds        Dataset
		batchSize int
		opts      []Option
		want      string
	}{
		{nil, 1, nil, "the dataset is nil"},
		{empty, 1, nil, "the dataset has 0 samples"},
		{ds, 0, nil, "batch size 0, want at least 1"},
		{ds, -3, nil, "batch size -3"},
		{ds, 1, []Option{Prefetch(-1)}, "prefetch depth -1, want 0 (none) or more"},
		{ds, 1, []Option{Shard(0, 0)}, "world size 0, want at least 1"},
		{ds, 1, []Option{Shard(2, 2)}, "rank 2, want 0..1 (the world size is 2)"},
		{ds, 1, []Option{Shard(-1, 2)}, "rank -1"},
		{ds, 11, []Option{DropLast()}, "leaves none: 10 samples, batch size 11"},
		{formed{ds, Spec{tensor.Shape{2}, tensor.Float64}}, 1, nil, "input samples are float64"},
		{formed{ds, Spec{tensor.Shape{2, 0}, tensor.Float32}}, 1, nil, "input samples have shape (2, 0)"},
	} {
		_, err := NewLoader(tt.ds, tt.batchSize, tt.opts...)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "data: make a loader: ") {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}
}

// sized and formed are datasets of another length or form than they have.
type sized struct {
	Dataset
	n int
}

func (s sized) Len() int { return s.n }

type formed struct {
	Dataset
	x Spec
}

func (f formed) Specs() (x, y Spec) {
	_, y = f.Dataset.Specs()
	return f.x, y
}

func TestCounts(t *testing.T) {
	for _, tt := range []struct {
		n, size, batches, samples int
		opts                      []Option
	}{
		{10, 4, 3, 10, nil},
		{10, 4, 2, 8, []Option{DropLast()}},
		{10, 5, 2, 10, nil},
		{10, 5, 2, 10, []Option{DropLast()}},
		{10, 64, 1, 10, nil},
		{10, 4, 3, 10, []Option{Shard(5, 7)}},
	} {
		l := newLoader(t, rows(t, tt.n), tt.size, tt.opts...)
		if l.Batches() != tt.batches || l.Samples() != tt.samples {
			t.Errorf("%d samples by %d: %d batches of %d samples, want %d of %d",
				tt.n, tt.size, l.Batches(), l.Samples(), tt.batches, tt.samples)
		}
		if count := len(read(t, l, 0)); count != tt.batches {
			t.Errorf("%d samples by %d: the loop had %d batches", tt.n, tt.size, count)
		}
	}
}

// read runs an epoch and gives the sample numbers of its batches, after checking
// every batch against its description and the dataset rows.
func read(t testing.TB, l *Loader, epoch int) [][]int {
	t.Helper()
	var all [][]int
	for b, err := range l.Epoch(context.Background(), epoch) {
		if err != nil {
			t.Fatal(err)
		}
		if b.Step != len(all) || b.Len() != len(b.Indices) {
			t.Fatalf("batch %d: step %d, %d samples, indices %v", len(all), b.Step, b.Len(), b.Indices)
		}
		all = append(all, slices.Clone(b.Indices))
		if b.Len() == 0 {
			if b.X != nil || b.Y != nil {
				t.Fatalf("batch %d is empty, but has tensors", b.Step)
			}
			continue
		}
		if !b.X.Shape().Eq(tensor.Shape{b.Len(), 2}) || !b.Y.Shape().Eq(tensor.Shape{b.Len()}) {
			t.Fatalf("batch %d of %d: shapes %v and %v", b.Step, b.Len(), b.X.Shape(), b.Y.Shape())
		}
		x, y := b.X.Data().([]float32), b.Y.Data().([]int32)
		for row, i := range b.Indices {
			if x[2*row] != float32(i) || x[2*row+1] != -float32(i) || y[row] != int32(i) {
				t.Fatalf("batch %d, row %d: not sample %d", b.Step, row, i)
			}
		}
	}
	return all
}

// One, two, three, four or seven ranks see together exactly the batches of one,
// in order, in step, whatever the options.
func TestShardsUniteToOne(t *testing.T) {
	for _, n := range []int{1, 36, 85} { // 85 by 9 leaves 4: a last batch that rank 3 of 4 shares in, unlike the others
		for _, opts := range [][]Option{nil, {Shuffle(3)}, {DropLast(), Shuffle(3)}, {Prefetch(0), Shuffle(1)}, {Prefetch(5)}} {
			size := min(9, n)
			ds := rows(t, n)
			one := read(t, newLoader(t, ds, size, opts...), 2)
			for _, world := range []int{1, 2, 3, 4, 7} {
				union := make([][]int, len(one))
				for rank := range world {
					parts := read(t, newLoader(t, ds, size, append(slices.Clone(opts), Shard(rank, world))...), 2)
					if len(parts) != len(one) {
						t.Fatalf("rank %d of %d has %d batches, one alone %d", rank, world, len(parts), len(one))
					}
					for step, part := range parts {
						if want := Chunk(len(one[step]), world, rank); len(part) != want.Len() {
							t.Fatalf("rank %d of %d has %d samples of batch %d, want %v", rank, world, len(part), step, want)
						}
						union[step] = append(union[step], part...)
					}
				}
				if fmt.Sprint(union) != fmt.Sprint(one) {
					t.Fatalf("%d samples, %d ranks: together %v, one alone %v", n, world, union, one)
				}
			}
		}
	}
}

func TestShare(t *testing.T) {
	l := newLoader(t, rows(t, 13), 9, Shard(2, 4))
	var got []string
	for b, err := range l.Epoch(context.Background(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(b.Share, b.GlobalSize, b.Indices))
	}
	if want := []string{"{6 9} 9 [6 7 8]", "{2 3} 4 [11]"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestShuffle(t *testing.T) {
	ds := rows(t, 100)
	flat := func(l *Loader, epoch int) []int { return slices.Concat(read(t, l, epoch)...) }
	l := newLoader(t, ds, 7, Shuffle(5))
	first := flat(l, 0)

	sorted := slices.Sorted(slices.Values(first))
	if want := flat(newLoader(t, ds, 7), 0); !slices.Equal(sorted, want) {
		t.Errorf("not every sample once: %v", first)
	}
	if slices.Equal(first, sorted) || slices.Equal(first, flat(l, 1)) || slices.Equal(first, flat(newLoader(t, ds, 7, Shuffle(6)), 0)) {
		t.Error("the order does not depend on shuffling, epoch and seed")
	}
	for _, again := range []*Loader{l, newLoader(t, ds, 7, Shuffle(5), Prefetch(0)), newLoader(t, ds, 100, Shuffle(5))} {
		if !slices.Equal(first, flat(again, 0)) {
			t.Error("the order depends on more than seed and epoch")
		}
	}
}

func TestConcurrentEpochs(t *testing.T) {
	l := newLoader(t, rows(t, 50), 4, Shuffle(1))
	want := fmt.Sprint(read(t, l, 0))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got := fmt.Sprint(read(t, l, 0)); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
	wg.Wait()
}

func BenchmarkEpoch(b *testing.B) {
	const n, features, size = 6400, 784, 64
	ds, err := NewTensorDataset(
		tensor.New(tensor.WithShape(n, features), tensor.Of(tensor.Float32)),
		tensor.New(tensor.WithShape(n), tensor.Of(tensor.Int32)),
	)
	if err != nil {
		b.Fatal(err)
	}
	for _, depth := range []int{0, 2} {
		l := newLoader(b, ds, size, Shuffle(1), Prefetch(depth))
		b.Run(fmt.Sprintf("prefetch=%d", depth), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(n * features * 4)
			for b.Loop() {
				for _, err := range l.Epoch(context.Background(), 0) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
