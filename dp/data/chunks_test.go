package data

import (
	"slices"
	"testing"
)

func TestChunks(t *testing.T) {
	for _, tt := range []struct {
		n, ranks int
		want     []int
	}{
		{9, 4, []int{3, 3, 3}},
		{36, 7, []int{6, 6, 6, 6, 6, 6}},
		{10, 4, []int{3, 3, 3, 1}},
		{250, 4, []int{63, 63, 63, 61}},
		{2, 4, []int{1, 1}},
		{8, 1, []int{8}},
		{0, 3, nil},
	} {
		var got []int
		for _, c := range Chunks(tt.n, tt.ranks) {
			got = append(got, c.Len())
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("Chunks(%d, %d) = %v, want %v", tt.n, tt.ranks, got, tt.want)
		}
	}
}

// Chunks follow each other from 0 to n, all but the last of one size, and Chunk
// agrees with Chunks.
func TestChunksCoverEverything(t *testing.T) {
	for n := range 60 {
		for ranks := 1; ranks < 12; ranks++ {
			chunks, next := Chunks(n, ranks), 0
			for rank := range ranks {
				c := Chunk(n, ranks, rank)
				if rank < len(chunks) && c != chunks[rank] || rank >= len(chunks) && c != (Range{n, n}) {
					t.Fatalf("Chunk(%d, %d, %d) = %v, Chunks %v", n, ranks, rank, c, chunks)
				}
				if c.Lo != next || c.Hi < c.Lo {
					t.Fatalf("Chunks(%d, %d) = %v: a gap or overlap at %v", n, ranks, chunks, c)
				}
				if rank < len(chunks)-1 && c.Len() != (n+ranks-1)/ranks {
					t.Fatalf("Chunks(%d, %d) = %v: %v is no ceil(n/ranks)", n, ranks, chunks, c)
				}
				next = c.Hi
			}
			if next != n {
				t.Fatalf("Chunks(%d, %d) = %v end at %d", n, ranks, chunks, next)
			}
		}
	}
}

func TestChunkPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"negative n":  func() { Chunk(-1, 2, 0) },
		"rank":        func() { Chunk(4, 2, 2) },
		"no ranks":    func() { Chunks(4, 0) },
		"Chunks of n": func() { Chunks(-1, 2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
