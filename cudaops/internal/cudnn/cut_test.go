package cudnn

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCuts(t *testing.T) {
	for _, c := range []struct {
		batch, least, multiple int
		want                   []int // samples a piece
	}{
		{1, 0, 1, []int{1}},
		{1, 5, 4, []int{1}},
		{2, 0, 1, []int{2, 1}},
		{2, 0, 2, []int{2}},
		{7, 0, 1, []int{7, 4, 2, 1}},
		{7, 2, 1, []int{7, 4, 2}},
		{7, 0, 2, []int{7, 4, 2}},
		{7, 0, 4, []int{7, 4}},
		{4096, 500, 4, []int{4096, 2048, 1024, 512}},
		{1000, 100, 1, []int{1000, 500, 250, 125}},
		{1000, 100, 4, []int{1000, 500, 252, 128}},
		{1000, 1001, 1, []int{1000}},
	} {
		var got []int
		for _, cut := range cuts(c.batch, c.least, c.multiple) {
			got = append(got, cut.samples)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("a batch of %d, pieces of at least %d and a multiple of %d (-want +got):\n%s", c.batch, c.least, c.multiple, diff)
		}
	}
}

func TestEven(t *testing.T) {
	for _, c := range []struct{ numbers, size, want int }{{676, 4, 1}, {18, 4, 2}, {729, 4, 4}, {676, 2, 2}, {729, 2, 8}} {
		if got := even(c.numbers, c.size); got != c.want {
			t.Errorf("%d numbers of %d bytes: %d, want %d", c.numbers, c.size, got, c.want)
		}
	}
}

func TestPieces(t *testing.T) {
	for _, c := range []struct {
		cut
		pieces [][2]int // first, samples
		sizes  []int
	}{
		{cut{5, 5}, [][2]int{{0, 5}}, []int{5}},
		{cut{8, 4}, [][2]int{{0, 4}, {4, 4}}, []int{4}},
		{cut{7, 3}, [][2]int{{0, 3}, {3, 3}, {6, 1}}, []int{3, 1}},
		{cut{1000, 334}, [][2]int{{0, 334}, {334, 334}, {668, 332}}, []int{334, 332}},
	} {
		var got [][2]int
		for i := range c.cut.pieces() {
			first, samples := c.piece(i)
			got = append(got, [2]int{first, samples})
		}
		if diff := cmp.Diff(c.pieces, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.cut, diff)
		}
		if diff := cmp.Diff(c.sizes, c.cut.sizes()); diff != "" {
			t.Errorf("sizes of %+v (-want +got):\n%s", c.cut, diff)
		}
	}
}
