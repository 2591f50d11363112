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
	whole    = 4096
	wholeAll = 16 << 10
)

// job is a call as one rank does it.
type job struct {
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
func (j *job) plan() {
	c, k := &j.c, j.t.size
	longest := (c.Len + k - 1) / k // of what is cut into pieces
	j.piece = inElems / k
	switch c.Op {
	case OpBroadcast:
		longest, j.piece = c.Len, inElems
	case OpAllGather:
		j.piece = inElems
	case OpReduce, OpAllReduce:
		j.whole = c.Len <= whole && c.Len*k <= wholeAll
		j.fetch = !j.whole
	case OpScatter, OpGather:
		longest = 0
		for _, n := range c.Counts {
			longest = max(longest, n)
		}
		if c.Op == OpGather {
			j.piece = inElems
		}
	}
	if j.whole {
		j.last = 1
		return
	}
	j.last = max(1, (longest+j.piece-1)/j.piece)
	if j.fetch {
		j.last++
	}
}

// area is what superstep s shows.
func (j *job) area(s int) int { return int(j.first+uint64(s)) & 1 }

// share is rank r's share of the buffer.
func (j *job) share(r int) []float32 {
	lo, hi := ir.ShareOf(len(j.buf), r, j.t.size)
	return j.buf[lo:hi]
}

// cut is piece s of x; none where x is shorter.
func (j *job) cut(x []float32, s int) []float32 {
	return x[min(s*j.piece, len(x)):min((s+1)*j.piece, len(x))]
}

// step is superstep s after the meeting.
func (j *job) step(s int) {
	j.post(s)
	j.take(s - 1)
	if j.fetch && s >= 2 {
		j.collect(s - 2)
	}
}

// post shows piece s of what others need.
func (j *job) post(s int) {
	me, root := j.t.rank, j.c.Root
	in := j.t.in[j.area(s)][me]
	switch j.c.Op {
	case OpBroadcast:
		if me == root {
			copy(in, j.cut(j.buf, s))
		}
	case OpAllGather:
		copy(in, j.cut(j.share(me), s))
	case OpGather:
		if me != root {
			copy(in, j.cut(j.src, s))
		}
	case OpScatter:
		if me == root {
			j.parts(j.src, func(r int, part []float32) {
				if r == me {
					copy(j.cut(j.buf, s), j.cut(part, s))
				} else {
					copy(in[r*j.piece:], j.cut(part, s))
				}
			})
		}
	case OpReduce, OpAllReduce, OpReduceScatter:
		if j.whole {
			copy(in, j.buf)
			return
		}
		for r := range j.t.size {
			if r != me {
				copy(in[r*j.piece:], j.cut(j.share(r), s))
			}
		}
	}
}

// take uses piece s of what others have shown.
func (j *job) take(s int) {
	me, root := j.t.rank, j.c.Root
	in := j.t.in[j.area(s)]
	switch j.c.Op {
	case OpBroadcast:
		if me != root {
			copy(j.cut(j.buf, s), in[root])
		}
	case OpAllGather:
		for r := range j.t.size {
			if r != me {
				copy(j.cut(j.share(r), s), in[r])
			}
		}
	case OpGather:
		if me == root {
			j.parts(j.buf, func(r int, part []float32) {
				if r == me {
					copy(j.cut(part, s), j.cut(j.src, s))
				} else {
					copy(j.cut(part, s), in[r])
				}
			})
		}
	case OpScatter:
		if me != root {
			copy(j.cut(j.buf, s), in[root][me*j.piece:])
		}
	case OpReduce, OpAllReduce, OpReduceScatter:
		j.sum(s)
	}
}

// parts calls f with every rank's part of root's whole of a Scatter or Gather.
func (j *job) parts(whole []float32, f func(r int, part []float32)) {
	for r, n := range j.c.Counts {
		f(r, whole[:n])
		whole = whole[n:]
	}
}

// sum adds up, in rank order, piece s of this rank's share of all buffers, or all of them.
func (j *job) sum(s int) {
	me, k := j.t.rank, j.t.size
	own, from := j.buf, 0
	if !j.whole {
		own, from = j.cut(j.share(me), s), me*j.piece
	}
	out := j.t.out[j.area(s+1)][me] // for the others if they fetch, and for sums of three and more
	dst := own
	if j.c.Op == OpReduce && me != j.c.Root {
		if j.whole {
			return
		}
		dst = out
	}
	in := j.t.in[j.area(s)]
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
		if j.c.Op == OpAllReduce && !j.whole {
			copy(out[lo:hi], dst[lo:hi])
		}
	}
}

// collect fetches piece s of the others' sums.
func (j *job) collect(s int) {
	me := j.t.rank
	if j.c.Op == OpReduce && me != j.c.Root {
		return
	}
	for r, out := range j.t.out[j.area(s+1)] {
		if r != me {
			copy(j.cut(j.share(r), s), out)
		}
	}
}
