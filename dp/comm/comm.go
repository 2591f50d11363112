package comm

import (
	"context"
	"time"
)

// Comm is one rank's end of a group of Size ranks. The buffers of two ranks must not overlap.
type Comm interface {
	// Rank is this rank's number, 0 <= Rank < Size.
	Rank() int
	// Size is the number of ranks in the group.
	Size() int

	// Broadcast fills every rank's buf with root's. All have the same length.
	Broadcast(ctx context.Context, buf []float32, root int) error
	// Reduce puts the sum of all ranks' buf into root's. The others' keep their content. All have the same length.
	Reduce(ctx context.Context, buf []float32, root int) error
	// AllReduce puts the sum of all ranks' buf into every rank's. All have the same length.
	AllReduce(ctx context.Context, buf []float32) error
	// ReduceScatter puts this rank's share, ir.ShareOf(len(buf), Rank, Size), of the sum of all ranks' buf into that share of
	// buf. The content of the rest of buf is then undefined. All have the same length.
	ReduceScatter(ctx context.Context, buf []float32) error
	// AllGather copies the share ir.ShareOf(len(buf), r, Size) of every rank r's buf to the same place in every rank's buf. All
	// have the same length.
	AllGather(ctx context.Context, buf []float32) error
	// Scatter cuts root's src into Size parts, one after the other, part r of counts[r] elements, and copies part r to rank r's
	// dst of just that length. The others' src is not used. All ranks give the same counts. Root's dst may be its part of
	// src; apart from that dst and src must not overlap.
	Scatter(ctx context.Context, dst, src []float32, counts []int, root int) error
	// Gather is the reverse: it copies every rank's src, counts[Rank] elements, to its part of root's dst. The others' dst is
	// not used. Root's src may be its part of dst; apart from that dst and src must not overlap.
	Gather(ctx context.Context, dst, src []float32, counts []int, root int) error
	// Barrier returns when every rank has called it.
	Barrier(ctx context.Context) error

	// Sub returns this rank's end of the group of ranks 0..k-1, to which this rank must belong. The same k gives the same Comm.
	// It is part of this group: what breaks one breaks both, and it ends with this one.
	Sub(k int) (Comm, error)

	// Err is the [BrokenError] that later calls return, or nil as long as the group works. It waits for nobody; like Abort and Close it
	// may be called from anywhere at any time.
	Err() error
	// Limit is how long this rank waits for others at most.
	Limit() time.Duration
	// Abort breaks the group: ranks that wait return a [BrokenError] that wraps cause, and so does every later call. Only the
	// first cause counts.
	Abort(cause error)
	// Close leaves the group, and by that breaks it for those that go on: their cause is [ErrClosed]. Calls that all ranks have
	// joined are not disturbed. It is harmless to close twice, or to close a Comm that Sub returned for fewer ranks, which does
	// nothing.
	Close() error
}

// Op names what ranks meet for.
type Op uint8

// The collectives, and the calls of a [Session].
const (
	OpBroadcast Op = iota
	OpReduce
	OpAllReduce
	OpReduceScatter
	OpAllGather
	OpScatter
	OpGather
	OpBarrier
	OpConnect
	OpNewGroup
)

// String returns its name: "all_reduce".
func (op Op) String() string {
	return [...]string{"broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "scatter", "gather", "barrier",
		"connect", "new_group"}[op]
}

// rooted reports whether the collective has a root.
func (op Op) rooted() bool {
	return op == OpBroadcast || op == OpReduce || op == OpScatter || op == OpGather
}

// uneven reports whether the caller says how much each rank gets.
func (op Op) uneven() bool { return op == OpScatter || op == OpGather }
