package comm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrClosed is the cause of a group that broke because a rank closed it.
var ErrClosed = errors.New("the group was closed")

// Call is what one rank called.
type Call struct {
	Rank   int
	Group  int // the number of ranks in the group that it called it on
	Op     Op
	Len    int   // elements of the buffer; of Scatter and Gather, of all parts
	Root   int   // of ops that have one
	Counts []int // of Scatter and Gather
}

// same reports whether two ranks' calls go together.
func (c Call) same(d Call) bool {
	return c.Group == d.Group && c.Op == d.Op && c.Len == d.Len && c.Root == d.Root && slices.Equal(c.Counts, d.Counts)
}

func (c Call) String() string {
	s := c.Op.String()
	switch {
	case c.Op.uneven():
		s += fmt.Sprintf(" of counts %v", c.Counts)
	case c.Op != OpBarrier:
		s += fmt.Sprintf(" of %d elements", c.Len)
	}
	switch {
	case c.Op == OpBroadcast || c.Op == OpScatter:
		s += fmt.Sprintf(" from rank %d", c.Root)
	case c.Op.rooted():
		s += fmt.Sprintf(" to rank %d", c.Root)
	}
	return s + fmt.Sprintf(" in the group of %d", c.Group)
}

// MismatchError is the error of ranks that do not make the same calls in the same order.
type MismatchError struct {
	Calls []Call // of the ranks that had come, by rank
}

func (e *MismatchError) Error() string {
	var parts []string
	for left := e.Calls; len(left) > 0; {
		var ranks []int
		var others []Call
		for _, c := range left {
			if c.same(left[0]) {
				ranks = append(ranks, c.Rank)
			} else {
				others = append(others, c)
			}
		}
		parts = append(parts, fmt.Sprintf("%s called %s", names(ranks), left[0]))
		left = others
	}
	return "comm: ranks have called different collectives: " + strings.Join(parts, "; ") +
		": every rank must make the same calls in the same order"
}

// TimeoutError is the error of a rank that has waited longer than the limit for others.
type TimeoutError struct {
	Op      Op
	Limit   time.Duration
	Missing []int // ranks that had not come
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("comm: %s: %s did not come within %v: find out what ended or delayed it, or set %s to more", e.Op, names(e.Missing), e.Limit, timeoutVariable)
}

// Timeout reports true, as for the errors of package net.
func (e *TimeoutError) Timeout() bool { return true }

// BrokenError is the error of using a group that is broken.
type BrokenError struct {
	Rank  int // that broke it; -1 if it was not a single one
	Cause error
}

func (e *BrokenError) Error() string {
	by := ""
	if e.Rank >= 0 {
		by = fmt.Sprintf(" by rank %d", e.Rank)
	}
	return fmt.Sprintf("comm: group was broken%s: %v", by, e.Cause)
}

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Cause }

// RemoteError is an error of another process, as text. If it was ErrClosed, context.Canceled or context.DeadlineExceeded there,
// errors.Is still says so here.
type RemoteError struct {
	Rank  int // whose process it happened in
	Text  string
	Kinds []string `json:",omitempty"` // "closed", "canceled", "deadline": what errors.Is finds
}

func (e *RemoteError) Error() string { return e.Text }

// Is reports whether the error was target.
func (e *RemoteError) Is(target error) bool {
	return slices.ContainsFunc(e.Kinds, func(kind string) bool { return kinds[kind] == target })
}

// ArgumentError is the error of a call that cannot work whatever other ranks do.
type ArgumentError struct {
	Rank int // of the caller
	Op   Op
	Why  string
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("comm: rank %d: %s: %s", e.Rank, e.Op, e.Why)
}

// names lists ranks in words: "rank 1", "ranks 0, 2".
func names(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	s := make([]string, len(ranks))
	for i, r := range ranks {
		s[i] = fmt.Sprint(r)
	}
	return "ranks " + strings.Join(s, ", ")
}
