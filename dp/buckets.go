package dp

import (
	"math"
	"slices"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// buckets cuts the gradients, in the order in which backward finishes them, between parameters, into ranges of at least so many elements.
func buckets(l *nn.Layout, size int) (list []data.Range) {
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

// ranges are the buckets in which gradients are exchanged: one, where the cards are not linked.
func (t *DataParallel) ranges() []data.Range {
	l := t.compiler.Layout
	each := 4 // bytes of a gradient
	if t.compiler.Apart() {
		each = 2
	}
	size := bucketSize(each * l.Elements)
	if t.cfg.bucket != nil {
		size = *t.cfg.bucket
	}
	if t.team.ranks[0].link == nil || size == 0 {
		return []data.Range{{Lo: 0, Hi: l.Elements}}
	}
	return buckets(l, size/each)
}

// on is a collective on a slot, in one go with the one before it or not. What is in one go must be so on all ranks: nothing comes between on any.
func on(kind ir.CollectiveKind, root int, s *ir.Slot, joined bool) ir.Part {
	return ir.Part{Collective: &ir.Collective{Kind: kind, Root: root, Joined: joined}, On: s}
}

// reduceParts sum the gradients and their tail as the strategy wants it, a bucket after the other.
func (t *DataParallel) reduceParts(list []data.Range) (parts []ir.Part) {
	c := &t.compiler
	// The tail goes with all gradients, unless others want to know the loss, too, or gradients are not summed. Else it goes with the first bucket, since no
	// update can do without it.
	whole := len(list) == 1 && !c.Apart() && (t.cfg.strategy == AllReduce || t.cfg.strategy == Gather && t.procs == nil)
	for i, b := range list {
		if whole {
			b.Hi += nn.GradTail
		}
		parts = append(parts, t.bring(b, len(list) == 1)...)
		if i == 0 && !whole {
			parts = append(parts, on(ir.AllReduce, 0, c.TailRange(), true))
		}
	}
	return parts
}

// bring are collectives, in one go, by which whoever updates elements of a bucket has their gradients. only says that there is no other bucket.
func (t *DataParallel) bring(b data.Range, only bool) (parts []ir.Part) {
	c := &t.compiler
	add := func(kind ir.CollectiveKind, root, lo, hi int) {
		if lo < hi {
			parts = append(parts, on(kind, root, c.GradRange(root, lo, hi), len(parts) > 0))
		}
	}
	switch {
	case c.Apart(): // each of the two tells the other
		for r := range 2 {
			lo, hi := t.updateRange(1 - r)
			add(ir.BroadcastFrom, r, max(lo, b.Lo), min(hi, b.Hi))
		}
	case t.cfg.strategy == AllReduce:
		add(ir.AllReduce, 0, b.Lo, b.Hi)
	case t.cfg.strategy == Gather:
		add(ir.ReduceTo, 0, b.Lo, b.Hi)
	case only:
		add(ir.ReduceScatter, 0, b.Lo, b.Hi)
	default: // to those who have shares of the bucket
		for r := range t.WorldSize() {
			lo, hi := t.updateRange(r)
			add(ir.ReduceTo, r, max(lo, b.Lo), min(hi, b.Hi))
		}
	}
	return parts
}

// pipeline are the parts of a step by gather that follow backward, where there are buckets that can be updated one by one: what an update on the
// primary card has changed is told to the others while the next bucket is summed, which goes the other way over the wire. So all but
// the last of that goes on beside backward.
func (t *DataParallel) pipeline(list []data.Range, updates bool, total, first int) ([]ir.Part, error) {
	l := t.compiler.Layout
	tell := func(b data.Range, joined bool) ir.Part {
		return on(ir.BroadcastFrom, 0, l.ParamRange(b.Lo, b.Hi), joined)
	}
	touch := func(b data.Range) (parts []ir.Part) {
		if t.compiler.Copied && !updates {
			parts = append(parts, ir.Part{Graph: ir.Touch(l.ParamRange(b.Lo, b.Hi))})
		}
		return parts
	}
	var parts []ir.Part
	for i, b := range list {
		parts = append(parts, t.bring(b, false)...)
		if i == 0 { // no update can do without the tail
			parts = append(parts, on(ir.AllReduce, 0, t.compiler.TailRange(), true), ir.Part{Graph: t.compiler.Report(total)})
		} else {
			parts = append(parts, tell(list[i-1], true))
			parts = append(parts, touch(list[i-1])...)
		}
		if updates {
			g, err := t.compiler.UpdatePart(b.Lo, b.Hi, total)
			if err != nil {
				return nil, err
			}
			parts = append(parts, ir.Part{Graph: g})
		}
	}
	last := list[len(list)-1]
	parts = append(parts, tell(last, false)) // its update is before it, where there is one
	return slices.Concat(parts, t.statistics(first), touch(last)), nil
}
