package ir

import (
	"cmp"
	"slices"
)

// buffer is a stretch of the work arena with a lifetime, in units of the schedule; both ends are included.
type buffer struct {
	size, start, end int
	offset           int
	lent             bool // it lies in the gradients' arena; see frugal.go
}

// alignment of buffers and constants, in elements: 256 bytes, what cards load best.
const alignment = 64

func align(n int) int { return roundUp(n, alignment) }

// plan gives every buffer an offset such that buffers alive at the same time do not overlap, and returns the elements of the
// arena. Buffers choose one after the other, each the lowest gap that takes it. Which should choose first has no rule that is always
// best, so some are tried: large ones; those that are alive when most is, large ones first; those that take most for longest.
func plan(buffers []*buffer) int {
	keepSmall(buffers)
	least, crowd := crowding(buffers)
	bySize := func(a, b *buffer) int { return cmp.Compare(b.size, a.size) }
	best, chosen := -1, make([]int, len(buffers))
	for _, order := range []func(a, b *buffer) int{
		bySize,
		func(a, b *buffer) int { return cmp.Or(cmp.Compare(crowd[b], crowd[a]), bySize(a, b)) },
		func(a, b *buffer) int { return cmp.Compare(b.size*(b.end-b.start+1), a.size*(a.end-a.start+1)) },
	} {
		if total := pack(buffers, order); best < 0 || total < best {
			best = total
			for i, b := range buffers {
				chosen[i] = b.offset
			}
		}
		if best == least {
			break
		}
	}
	for i, b := range buffers {
		b.offset = chosen[i]
	}
	return max(best, 0)
}

// keepSmall lets small buffers live until the end, if all of them are little. On cards that do several steps at a time a large value would wait for the steps that
// still read small ones, where it lies in their place: as all gradients would for the sum of the losses.
func keepSmall(buffers []*buffer) {
	const small, little = 1 << 14, 16 // elements of a buffer; the part of the largest that all may be
	largest, end, all := 0, 0, 0
	for _, b := range buffers {
		largest, end = max(largest, align(b.size)), max(end, b.end)
	}
	isSmall := func(b *buffer) bool { return b.size <= small }
	for _, b := range buffers {
		if isSmall(b) {
			all += align(b.size)
		}
	}
	for _, b := range buffers {
		if isSmall(b) && all <= largest/little {
			b.end = end
		}
	}
}

// crowding finds the most elements that are alive at a time, which no plan can do without, and the most in each buffer's life.
func crowding(buffers []*buffer) (most int, crowd map[*buffer]int) {
	end := 0
	for _, b := range buffers {
		end = max(end, b.end)
	}
	live := make([]int, end+2)
	for _, b := range buffers {
		live[b.start] += align(b.size)
		live[b.end+1] -= align(b.size)
	}
	for i := range live[1:] {
		live[i+1] += live[i]
	}
	crowd = make(map[*buffer]int, len(buffers))
	for _, b := range buffers {
		crowd[b] = slices.Max(live[b.start : b.end+1])
		most = max(most, crowd[b])
	}
	return most, crowd
}

// pack places the buffers in an order, each in the lowest gap that takes it.
func pack(buffers []*buffer, order func(a, b *buffer) int) int {
	total := 0
	var placed []*buffer // by offset
	for _, b := range slices.SortedStableFunc(slices.Values(buffers), order) {
		at := 0
		for _, o := range placed {
			if o.end < b.start || b.end < o.start {
				continue
			}
			if o.offset >= at+align(b.size) {
				break
			}
			at = max(at, o.offset+align(o.size))
		}
		b.offset = at
		total = max(total, at+align(b.size))
		i, _ := slices.BinarySearchFunc(placed, b, func(x, y *buffer) int { return x.offset - y.offset })
		placed = slices.Insert(placed, i, b)
	}
	return total
}
