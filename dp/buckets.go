package dp

import (
	"math"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// buckets cuts the gradients, in the order in which backward finishes them, between parameters, into ranges of at least so many bytes.
func buckets(l *nn.Layout, bytes int) (list []data.Range) {
	size := bytes / 4
	lo := 0
	for _, p := range l.Params[1:] {
		if at := p.Slot.Offset; at-lo >= size {
			list = append(list, data.Range{Lo: lo, Hi: at})
			lo = at
		}
	}
	return append(list, data.Range{Lo: lo, Hi: l.Elements})
}

// begun is about how many bytes go from card to card in the time that it takes to begin a sum: over NVLink, by kernels of our own or NCCL, 4 to 6 µs
// at 250 to 350 GB/s; over PCI Express less at once, and more time to begin.
const begun = 1 << 20

// bucketSize is the size of buckets, of that many bytes of gradients, with which what all of them take to begin and what the last one takes, as nothing
// is left to compute beside it, is least together.
func bucketSize(gradients int) int {
	return int(math.Sqrt(begun * float64(gradients)))
}

// reduceParts sum the gradients and their tail as the strategy wants it: all at once, or a bucket after the other where the
// cards are linked.
func (t *DataParallel) reduceParts() (parts []ir.Part) {
	l := t.compiler.Layout
	n := l.Elements
	list := []data.Range{{Lo: 0, Hi: n}}
	size := bucketSize(4 * n)
	if t.cfg.bucket != nil {
		size = *t.cfg.bucket
	}
	if t.team.ranks[0].link != nil && size > 0 {
		list = buckets(l, size)
	}
	add := func(kind ir.CollectiveKind, root, lo, hi int, atOnce bool) {
		parts = append(parts, ir.Part{Collective: &ir.Collective{Kind: kind, Root: root, Joined: atOnce}, On: l.GradRange(lo, hi)})
	}
	// The tail goes with all gradients, unless others want to know the loss, too. Else it goes with the first bucket, since no update can do without it.
	whole := len(list) == 1 && (t.cfg.strategy == AllReduce || t.cfg.strategy == Gather && t.procs == nil)
	if whole {
		list[0].Hi += nn.GradTail
	}
	for i, b := range list {
		switch {
		case t.cfg.strategy == AllReduce:
			add(ir.AllReduce, 0, b.Lo, b.Hi, false)
		case t.cfg.strategy == Gather:
			add(ir.ReduceTo, 0, b.Lo, b.Hi, false)
		case len(list) == 1:
			add(ir.ReduceScatter, 0, b.Lo, b.Hi, false)
		default: // to those who have shares of the bucket
			for r := range t.WorldSize() {
				lo, hi := t.updateRange(r)
				if lo, hi := max(lo, b.Lo), min(hi, b.Hi); lo < hi {
					add(ir.ReduceTo, r, lo, hi, lo > b.Lo)
				}
			}
		}
		if i == 0 && !whole {
			add(ir.AllReduce, 0, n, n+nn.GradTail, true)
		}
	}
	return parts
}
