package comm

import "github.com/tandem-train/tandem/internal/ir"

// How ranks that share memory move data
//
// A rank's buffers are its own: what others are to see it copies to its stage. A call goes in supersteps, and a rank begins one when all
// have finished the one before. In each, a rank shows a piece of its data (post), uses the piece before that of the others' (take), and for
// a sum that goes to others as well, fetches what they summed of the piece before that (fetch). A stage has two areas that the
// supersteps use in turn, so nobody writes what another still reads.
//
// The first post comes before the meeting. So what fits into one piece needs one meeting and nothing else.

// whole is how long a buffer may be, and all of them together, for every rank to take the sum of it all rather than of its share.
const (
	whole    = 16 << 10
	wholeAll = 32 << 10
)

// transfer is a call as one rank does it.
type transfer struct {
	t        *shared
	c        Call
	buf, src []float32
	first    uint64 // phase

	piece int  // elements
	last  int  // superstep
	whole bool // a sum of which every rank takes all
	fetch bool // a sum of which every rank takes its share, and others fetch it
}

// plan decides how large pieces are. It follows from the call, so that all ranks decide the same.
func (x *transfer) plan() {
	c, k := &x.c, x.t.size
	longest := (c.Len + k - 1) / k // of what is cut into pieces
	x.piece = inElems / k
	switch c.Op {
	case OpBroadcast:
		longest, x.piece = c.Len, inElems
	case OpAllGather:
		x.piece = inElems
	case OpReduce, OpAllReduce:
		x.whole = c.Len <= whole && c.Len*k <= wholeAll
		x.fetch = !x.whole
	case OpScatter, OpGather:
		longest = 0
		for _, n := range c.Counts {
			longest = max(longest, n)
		}
		if c.Op == OpGather {
			x.piece = inElems
		}
	}
	if x.whole {
		x.last = 1
		return
	}
	x.last = max(1, (longest+x.piece-1)/x.piece)
	if x.fetch {
		x.last++
	}
}

// area is what superstep s shows.
func (x *transfer) area(s int) int { return int(x.first+uint64(s)) & 1 }

// share is rank r's share of the buffer.
func (x *transfer) share(r int) []float32 {
	lo, hi := ir.ShareOf(len(x.buf), r, x.t.size)
	return x.buf[lo:hi]
}

// cut is piece s of a buffer; none where it is shorter.
func (x *transfer) cut(of []float32, s int) []float32 {
	return of[min(s*x.piece, len(of)):min((s+1)*x.piece, len(of))]
}

// step is superstep s after the meeting.
func (x *transfer) step(s int) {
	x.post(s)
	x.take(s - 1)
	if x.fetch && s >= 2 {
		x.collect(s - 2)
	}
}

// post shows piece s of what others need.
func (x *transfer) post(s int) {
	me, root := x.t.rank, x.c.Root
	in := x.t.in[x.area(s)][me]
	switch x.c.Op {
	case OpBroadcast:
		if me == root {
			copy(in, x.cut(x.buf, s))
		}
	case OpAllGather:
		copy(in, x.cut(x.share(me), s))
	case OpGather:
		if me != root {
			copy(in, x.cut(x.src, s))
		}
	case OpScatter:
		if me == root {
			x.parts(x.src, func(r int, part []float32) {
				if r == me {
					copy(x.cut(x.buf, s), x.cut(part, s))
				} else {
					copy(in[r*x.piece:], x.cut(part, s))
				}
			})
		}
	case OpReduce, OpAllReduce, OpReduceScatter:
		if x.whole {
			copy(in, x.buf)
			return
		}
		for r := range x.t.size {
			if r != me {
				copy(in[r*x.piece:], x.cut(x.share(r), s))
			}
		}
	}
}

// take uses piece s of what others have shown.
func (x *transfer) take(s int) {
	me, root := x.t.rank, x.c.Root
	in := x.t.in[x.area(s)]
	switch x.c.Op {
	case OpBroadcast:
		if me != root {
			copy(x.cut(x.buf, s), in[root])
		}
	case OpAllGather:
		for r := range x.t.size {
			if r != me {
				copy(x.cut(x.share(r), s), in[r])
			}
		}
	case OpGather:
		if me == root {
			x.parts(x.buf, func(r int, part []float32) {
				if r == me {
					copy(x.cut(part, s), x.cut(x.src, s))
				} else {
					copy(x.cut(part, s), in[r])
				}
			})
		}
	case OpScatter:
		if me != root {
			copy(x.cut(x.buf, s), in[root][me*x.piece:])
		}
	case OpReduce, OpAllReduce, OpReduceScatter:
		x.sum(s)
	}
}

// parts calls f with every rank's part of root's whole of a Scatter or Gather.
func (x *transfer) parts(whole []float32, f func(r int, part []float32)) {
	for r, n := range x.c.Counts {
		f(r, whole[:n])
		whole = whole[n:]
	}
}

// sum adds up, in rank order, piece s of this rank's share of all buffers, or all of them.
func (x *transfer) sum(s int) {
	me, k := x.t.rank, x.t.size
	own, from := x.buf, 0
	if !x.whole {
		own, from = x.cut(x.share(me), s), me*x.piece
	}
	out := x.t.out[x.area(s+1)][me] // for the others if they fetch, and for sums of three and more
	dst := own
	if x.c.Op == OpReduce && me != x.c.Root {
		if x.whole {
			return
		}
		dst = out
	}
	in := x.t.in[x.area(s)]
	for lo := 0; lo < len(own); lo += block {
		hi := min(lo+block, len(own))
		term := func(r int) []float32 {
			if r == me {
				return own[lo:hi]
			}
			return in[r][from+lo : from+hi]
		}
		sum := term(0)
		for r := 1; r < k-1; r++ {
			add(out[lo:hi], sum, term(r))
			sum = out[lo:hi]
		}
		add(dst[lo:hi], sum, term(k-1))
		if x.c.Op == OpAllReduce && !x.whole {
			copy(out[lo:hi], dst[lo:hi])
		}
	}
}

// collect fetches piece s of the others' sums.
func (x *transfer) collect(s int) {
	me := x.t.rank
	if x.c.Op == OpReduce && me != x.c.Root {
		return
	}
	for r, out := range x.t.out[x.area(s+1)] {
		if r != me {
			copy(x.cut(x.share(r), s), out)
		}
	}
}
