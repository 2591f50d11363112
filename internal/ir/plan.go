package ir

import "slices"

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
// arena. Large buffers choose first, each the lowest gap that takes it: the usual greedy rule, within a few percent of the
// best on training steps.
func plan(buffers []*buffer) int {
	order := slices.Clone(buffers)
	slices.SortStableFunc(order, func(a, b *buffer) int { return b.size - a.size })
	total := 0
	var placed []*buffer // by offset
	for _, b := range order {
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
