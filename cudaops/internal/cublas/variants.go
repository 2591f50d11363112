package cublas

import "slices"

// The library offers each algorithm with one value of every attribute, its guess. Other values of some make a product faster now and then, by what blocks that
// run at the same time read in common. What the library accepts of those is measured like what it offers, and gives as good numbers, the same every time.

// Attributes of algorithms.
const algoSwizzling, algoCluster = 4, 8

// varied adds variants to what is offered, of the kind that is worth measuring for the product.
func (p *Plan) varied(offers []heuristic) []heuristic {
	if p.product.Heavy() {
		return p.swizzled(offers)
	}
	return append(offers, p.paired(offers)...)
}

// swizzled puts before each algorithm one that makes the tiles of the result in another order, in which those that are made at the same time have more of what they
// read in common. Of products of 8192 by 8192 with 4096 rows in bfloat16 that saved 1.3 % on a busy H200.
func (p *Plan) swizzled(offers []heuristic) (list []heuristic) {
	const together = 2
	for _, o := range offers {
		if other, ok := p.with(o, algoSwizzling, together, 4); ok {
			list = append(list, other)
		}
		list = append(list, o)
	}
	return list
}

// paired lists algorithms that are like those offered, but whose blocks read in pairs what they have in common, one below the other or side by side: those of
// Hopper, which have clusters of blocks at all. For products that take a card some microseconds the shape that is offered often is not the
// fastest: the products of a step of three layers of 512 with 4096 rows in TF32 take 5 of 109 microseconds less on an H200.
func (p *Plan) paired(offers []heuristic) (list []heuristic) {
	const none, below, beside = 0, 3, 5
	for _, o := range offers {
		var shape, size uint64
		if p.h.lib.algoGet(&o.algo, algoCluster, &shape, 2, &size) != 0 || shape == none {
			continue
		}
		for _, pair := range []uint64{below, beside} {
			other, ok := p.with(o, algoCluster, pair, 2)
			known := func(h heuristic) bool { return h.algo == other.algo }
			if ok && !slices.ContainsFunc(offers, known) && !slices.ContainsFunc(list, known) {
				list = append(list, other)
			}
		}
	}
	return list
}

// with is an algorithm with another value of an attribute, of the size given, if the library has that for the product.
func (p *Plan) with(o heuristic, attribute int32, value, size uint64) (other heuristic, ok bool) {
	h, l, result := p.h, p.h.lib, new(heuristic)
	other = o
	ok = l.algoSet(&other.algo, attribute, &value, size) == 0 && other.algo != o.algo &&
		l.algoCheck(h.handle, p.desc, p.layouts[1], p.layouts[0], p.layouts[2], p.layouts[2], &other.algo, result) == 0 &&
		result.state == 0 && result.workspace <= p.room()
	other.workspace = result.workspace
	return other, ok
}
