package host

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestMerge(t *testing.T) {
	for _, c := range []struct {
		name    string
		shape   []int
		strides [][]int
		ext     []int
		merged  [][]int
	}{
		{"scalar", []int{}, [][]int{{}}, []int{1}, [][]int{{0}}},
		{"contiguous", []int{2, 3, 4}, [][]int{{12, 4, 1}, {12, 4, 1}}, []int{24}, [][]int{{1}, {1}}},
		{"ones vanish", []int{2, 1, 4, 1}, [][]int{{4, 99, 1, 7}}, []int{8}, [][]int{{1}}},
		{"bias along rows", []int{2, 3, 4}, [][]int{{12, 4, 1}, {0, 0, 1}}, []int{6, 4}, [][]int{{4, 1}, {0, 1}}},
		{"bias of channels", []int{2, 3, 4, 5}, [][]int{{60, 20, 5, 1}, {0, 1, 0, 0}}, []int{2, 3, 20}, [][]int{{60, 20, 1}, {0, 1, 0}}},
		{"number", []int{2, 3}, [][]int{{3, 1}, {0, 0}}, []int{6}, [][]int{{1}, {0}}},
		{"transposed", []int{2, 3}, [][]int{{3, 1}, {1, 2}}, []int{2, 3}, [][]int{{3, 1}, {1, 2}}},
		{"every other", []int{4, 3}, [][]int{{6, 2}}, []int{12}, [][]int{{2}}},
	} {
		s, views, err := merge(c.shape, c.strides)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !slices.Equal(s.ext, c.ext) {
			t.Errorf("%s: extents %v, want %v", c.name, s.ext, c.ext)
		}
		for i, v := range views {
			if !slices.Equal(v.strides, c.merged[i]) {
				t.Errorf("%s: operand %d: strides %v, want %v", c.name, i, v.strides, c.merged[i])
			}
		}
	}
	wide, strides := make([]int, 2*maxDims), make([]int, 2*maxDims)
	for d := range wide {
		wide[d], strides[d] = 2, d%2
	}
	if _, _, err := merge(wide, [][]int{strides}); err == nil {
		t.Error("a loop of too many dimensions was accepted")
	}
}

// Offsets by row, by walking and by the definition agree on random views, and tiles cover the space once.
func TestViewsAndTiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		rank := rng.IntN(5)
		shape, strides, dense := make([]int, rank), make([]int, rank), make([]int, rank)
		n := 1
		for d := rank - 1; d >= 0; d-- {
			shape[d] = 1 + rng.IntN(6)
			if rng.IntN(8) == 0 {
				shape[d] = 1 + rng.IntN(1500/n+1)
			}
			strides[d] = rng.IntN(3) * rng.IntN(20)
			dense[d] = n
			n *= shape[d]
		}
		var want []int
		index := make([]int, rank)
		for range n {
			at := 0
			for d := range index {
				at += index[d] * strides[d]
			}
			want = append(want, at)
			for d := rank - 1; d >= 0; d-- {
				if index[d]++; index[d] < shape[d] {
					break
				}
				index[d] = 0
			}
		}
		s, views, err := merge(shape, [][]int{strides, dense})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]int, n)
		seen := make([]int, n)
		tl := s.tiling()
		for i := range tl.count {
			tile := tl.tile(&s, i)
			if tile.rows*tile.cols > tileLen {
				t.Fatalf("shape %v: tile %+v is too large", shape, tile)
			}
			var w [2]walker
			w[0].start(&views[0], s.ext, tile.row)
			w[1].start(&views[1], s.ext, tile.row)
			for r := range tile.rows {
				if at := views[0].offset(s.ext, tile.row+r); at != w[0].off {
					t.Fatalf("shape %v strides %v: row %d starts at %d or %d", shape, strides, tile.row+r, at, w[0].off)
				}
				for c := tile.col; c < tile.col+tile.cols; c++ {
					e := w[1].off + c*views[1].step
					got[e] = w[0].off + c*views[0].step
					seen[e]++
				}
				w[0].next()
				w[1].next()
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("shape %v strides %v: offsets %v, want %v", shape, strides, got, want)
		}
		if slices.Max(seen) != 1 || slices.Min(seen) != 1 {
			t.Fatalf("shape %v: tiles do not cover the space once", shape)
		}
	}
}
