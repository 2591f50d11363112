package comm

import (
	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// block is how many elements are worked on at a time: a sum and one operand, 16 KiB, stay in the first cache.
const block = 2048

// small is the number of elements, of all ranks together, up to which the last rank to arrive does everybody's part: about a
// microsecond, less than it takes the ranks to meet again.
const small = 4096

var add = kernel.Vectors(kernel.Best()).Add.VV

// size is the number of elements that the call moves, of all ranks together.
func (t *team) size(c *Call) int {
	if c.Op.uneven() {
		return c.Len
	}
	return c.Len * len(t.ends)
}

// work does rank r's part of the call: its share of every rank's buffer. No other rank's part touches that share.
func (t *team) work(r int, scratch []float32) {
	if len(t.ends) == 1 && !t.ends[0].call.Op.uneven() {
		return
	}
	c := &t.ends[r].call
	if c.Op.uneven() {
		t.move(r)
		return
	}
	for lo, hi := ir.ShareOf(c.Len, r, len(t.ends)); lo < hi; lo += block {
		end := min(lo+block, hi)
		switch c.Op {
		case OpBroadcast:
			t.spread(c.Root, lo, end)
		case OpReduce:
			t.sum(c.Root, lo, end, scratch)
		case OpAllReduce:
			t.sum(r, lo, end, scratch)
			t.spread(r, lo, end)
		case OpReduceScatter:
			t.sum(r, lo, end, scratch)
		case OpAllGather:
			t.spread(r, lo, end)
		}
	}
}

// sum adds elements lo..hi-1 of all buffers, in rank order, into the buffer of rank dst. The others stay as they are.
func (t *team) sum(dst, lo, hi int, scratch []float32) {
	last := len(t.ends) - 1
	acc := t.ends[0].buf[lo:hi]
	for _, e := range t.ends[1:last] {
		sum := scratch[:hi-lo]
		add(sum, acc, e.buf[lo:hi])
		acc = sum
	}
	add(t.ends[dst].buf[lo:hi], acc, t.ends[last].buf[lo:hi])
}

// spread copies elements lo..hi-1 of rank from's buffer to all others.
func (t *team) spread(from, lo, hi int) {
	src := t.ends[from].buf[lo:hi]
	for r, e := range t.ends {
		if r != from {
			copy(e.buf[lo:hi], src)
		}
	}
}

// move copies rank r's part of a Scatter or Gather.
func (t *team) move(r int) {
	e := t.ends[r]
	lo := 0
	for _, n := range e.call.Counts[:r] {
		lo += n
	}
	root := t.ends[e.call.Root]
	if e.call.Op == OpScatter {
		copy(e.buf, root.src[lo:])
	} else {
		copy(root.buf[lo:], e.src)
	}
}
