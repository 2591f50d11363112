package data

import "fmt"

// Range is the half-open interval Lo <= i < Hi.
type Range struct{ Lo, Hi int }

// Len gives the number of elements, Hi - Lo.
func (r Range) Len() int { return r.Hi - r.Lo }

// Chunks divides n samples over ranks: ceil(n/ranks) to each until none is left.
// So there may be fewer chunks than ranks, and the last may be smaller: 9 over 4
// is 3, 3, 3; 36 over 7 is six of 6; 10 over 4 is 3, 3, 3, 1. No chunk is empty. It is the rule of torch.chunk and so of DataParallel's scatter.
// n must not be negative, ranks must be positive.
func Chunks(n, ranks int) []Range {
	if n < 0 || ranks <= 0 {
		panic(fmt.Sprintf("data: chunks of %d samples over %d ranks", n, ranks))
	}
	var chunks []Range
	for rank := range ranks {
		c := Chunk(n, ranks, rank)
		if c.Len() == 0 {
			break
		}
		chunks = append(chunks, c)
	}
	return chunks
}

// Chunk gives one rank's part of n samples: Chunks(n, ranks)[rank], or the empty
// Range{n, n} for a rank for which nothing is left.
func Chunk(n, ranks, rank int) Range {
	if n < 0 || rank < 0 || rank >= ranks {
		panic(fmt.Sprintf("data: chunk of rank %d in %d ranks of %d samples", rank, ranks, n))
	}
	size := (n + ranks - 1) / ranks
	return Range{min(rank*size, n), min((rank+1)*size, n)}
}
