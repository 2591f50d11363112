package comm

import (
	"context"
	"fmt"
	"time"
)

// member is one rank's place in a group, and the collectives of Comm: each says what it is, and leaves the rest to exchange. The
// implementations embed it.
type member struct {
	rank, size int
	limit      time.Duration
	exchange   func(ctx context.Context, c Call, buf, src []float32) error
}

func (m *member) Rank() int            { return m.rank }
func (m *member) Size() int            { return m.size }
func (m *member) Limit() time.Duration { return m.limit }

func (m *member) Broadcast(ctx context.Context, buf []float32, root int) error {
	return m.exchange(ctx, Call{Op: OpBroadcast, Len: len(buf), Root: root}, buf, nil)
}

func (m *member) Reduce(ctx context.Context, buf []float32, root int) error {
	return m.exchange(ctx, Call{Op: OpReduce, Len: len(buf), Root: root}, buf, nil)
}

func (m *member) AllReduce(ctx context.Context, buf []float32) error {
	return m.exchange(ctx, Call{Op: OpAllReduce, Len: len(buf)}, buf, nil)
}

func (m *member) ReduceScatter(ctx context.Context, buf []float32) error {
	return m.exchange(ctx, Call{Op: OpReduceScatter, Len: len(buf)}, buf, nil)
}

func (m *member) AllGather(ctx context.Context, buf []float32) error {
	return m.exchange(ctx, Call{Op: OpAllGather, Len: len(buf)}, buf, nil)
}

func (m *member) Scatter(ctx context.Context, dst, src []float32, counts []int, root int) error {
	return m.exchange(ctx, Call{Op: OpScatter, Root: root, Counts: counts}, dst, src)
}

func (m *member) Gather(ctx context.Context, dst, src []float32, counts []int, root int) error {
	return m.exchange(ctx, Call{Op: OpGather, Root: root, Counts: counts}, dst, src)
}

func (m *member) Barrier(ctx context.Context) error {
	return m.exchange(ctx, Call{Op: OpBarrier}, nil, nil)
}

// check fills in the rest of a call, and finds what is wrong with it by itself.
func (m *member) check(ctx context.Context, c *Call, buf, src []float32) error {
	c.Rank, c.Group = m.rank, m.size
	if ctx.Err() != nil {
		return m.ended(ctx, c.Op, nil)
	}
	wrong := func(format string, args ...any) error {
		return &ArgumentError{m.rank, c.Op, fmt.Sprintf(format, args...)}
	}
	if c.Op.rooted() && (c.Root < 0 || c.Root >= c.Group) {
		return wrong("root %d is not in the group of %d ranks", c.Root, c.Group)
	}
	if !c.Op.uneven() {
		return nil
	}
	if len(c.Counts) != c.Group {
		return wrong("%d counts for %d ranks", len(c.Counts), c.Group)
	}
	for r, n := range c.Counts {
		if n < 0 {
			return wrong("the count of rank %d is %d", r, n)
		}
		c.Len += n
	}
	part, whole, partName, wholeName := buf, src, "dst", "src"
	if c.Op == OpGather {
		part, whole, partName, wholeName = src, buf, "src", "dst"
	}
	if len(part) != c.Counts[m.rank] {
		return wrong("%s has %d elements, the rank's count is %d", partName, len(part), c.Counts[m.rank])
	}
	if m.rank == c.Root && len(whole) != c.Len {
		return wrong("the root's %s has %d elements, the sum of counts %v is %d", wholeName, len(whole), c.Counts, c.Len)
	}
	return nil
}

// ended is the error of a call whose context has ended while ranks were missing.
func (m *member) ended(ctx context.Context, op Op, missing []int) error {
	waiting := ""
	if len(missing) > 0 {
		waiting = " while waiting for " + names(missing)
	}
	return contextError(ctx, fmt.Sprintf("comm: rank %d: %s%s", m.rank, op, waiting))
}

// contextError says that a context ended what was done, and wraps its error and its cause.
func contextError(ctx context.Context, what string) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err { //nolint:errorlint // a cause that wraps err has more to say
		return fmt.Errorf("%s: %w: %w", what, err, cause)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// busy is the error of a second call of a rank that is in one already.
func (m *member) busy(op Op) error {
	return &ArgumentError{m.rank, op, "another call of this rank is in progress: one goroutine at a time uses a Comm"}
}

// noSub is the error of a sub-group that this rank can't be in, or nil.
func (m *member) noSub(k int) error {
	if k <= m.rank || k > m.size {
		return fmt.Errorf("comm: rank %d of %d: no sub-group of %d ranks has this rank in it: give %d to %d", m.rank, m.size, k, m.rank+1, m.size)
	}
	return nil
}

// noCause stands for the cause of an Abort that gave none.
func noCause(rank int) error { return fmt.Errorf("rank %d aborted and gave no cause", rank) }
