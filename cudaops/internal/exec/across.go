package exec

import "fmt"

// acrossTile cuts a product whose operands both lie across k for the kernel of across.cuh; ok is false where that does not take it, or is of no use. A block
// makes 128 rows, and as many columns and as much of k as leave the busiest multiprocessor the least to fetch, which is what limits the kernel.
func (p matrices) acrossTile() (t tile, ok bool) {
	const (
		rows     = 128
		widest   = 160 // columns: what registers hold the sums of
		step     = 32  // of k
		shortest = 8 * step
		largest  = 1 << 32 // multiplications: beyond, the library keeps the card as busy, and takes less from shared memory
	)
	atOnce := [...]int{132, 66, 39, 30, 22, 17, 15, 15} // clusters of one block, of two, ... that an H200 runs
	if p.strides[0][0] != 1 || p.strides[1][1] != 1 || p.strides[0][1] == 1 || p.strides[1][0] == 1 {
		return t, false
	}
	if p.m < rows/2 || p.n < step || p.k < shortest || p.batch*p.m*p.n*p.k > largest {
		return t, false
	}
	best := 0
	for across := blocks(p.n, widest); across <= blocks(p.n, step); across++ {
		n := blocks(blocks(p.n, across), 2*lanes) * 2 * lanes
		tiles := p.batch * blocks(p.m, rows) * blocks(p.n, n)
		for i, most := range atOnce {
			parts := i + 1
			if parts > 1 && parts*shortest > p.k {
				break
			}
			if cost := blocks(tiles, most) * blocks(blocks(p.k, parts), step) * (rows + n); best == 0 || cost < best {
				t, best = tile{rows, n, parts}, cost
			}
		}
	}
	return t, true
}

// across plans a product whose operands both lie across k.
func (b *planner) across(p matrices, t tile) {
	const depth, step = 4, 32 // stages of the first operand, and of k
	shared := depth*step*(t.m+8) + 2*step*blocks(t.n, step)*step
	b.tiled(p, t, "across", fmt.Sprintf("Across<%s, %d, %d, %d>", p.product(), t.n, t.parts, depth), 384, max(shared, t.m*(t.n+lanes+1))+8) // the last for barriers
}
