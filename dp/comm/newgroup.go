package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// NewGroup makes a group of all processes, one rank each. Every process calls it, and may do so again: for a second group, or for a new
// one after a group broke. The facts are what the ranks must agree on, in the same order; if they do not, all get a
// [DisagreementError].
func (s *Session) NewGroup(ctx context.Context, facts []Fact) (Comm, error) {
	s.making.Lock()
	defer s.making.Unlock()
	if s.size == 1 {
		group, err := NewLocal(1, Timeout(s.limit))
		if err != nil {
			return nil, err
		}
		return group[0], nil
	}
	s.call++
	w := s.newWait(ctx, OpNewGroup, s.call)
	defer w.end()
	build := s.join
	if s.rank == 0 {
		build = s.found
	}
	seg, err := build(w, facts)
	if err != nil {
		s.fail(s.call, err)
		return nil, err
	}
	return s.adopt(seg), nil
}

// found makes the memory of a group, on rank 0, when all have come and agree.
func (s *Session) found(w *wait, facts []Fact) (seg *segment, err error) {
	come := make([]*message, s.size)
	missing := func() []int {
		var ranks []int
		for r := 1; r < s.size; r++ {
			if come[r] == nil {
				ranks = append(ranks, r)
			}
		}
		return ranks
	}
	if err := w.until(missing, func(l letter) error { come[l.from] = l.message; return nil }); err != nil {
		return nil, err
	}
	for r := 1; r < s.size; r++ {
		if d := disagreement(facts, r, come[r].Facts); d != nil {
			return nil, d
		}
	}
	if err := s.hosts(); err != nil {
		return nil, err
	}
	seg, file, err := newSegment(s.size)
	if err != nil {
		return nil, err
	}
	clear(come)
	s.tell(&message{Kind: kindMemory, Call: w.call, Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), Nonce: seg.nonce()})
	err = w.until(missing, func(l letter) error { come[l.from] = l.message; return nil })
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		seg.unmap()
		return nil, err
	}
	s.tell(&message{Kind: kindStart, Call: w.call})
	return seg, nil
}

// join asks rank 0 for the memory of a group, on the other ranks, and maps it.
func (s *Session) join(w *wait, facts []Fact) (seg *segment, err error) {
	zero := s.peers[0]
	var wrong *frameError // any other error is that rank 0 is gone, which its reader notices
	if err := zero.send(&message{Kind: kindJoin, Call: w.call, Facts: facts}); errors.As(err, &wrong) {
		return nil, fmt.Errorf("comm: rank %d: %s: its facts: %w", s.rank, w.op, err)
	}
	missing := []int{0}
	var unmapped error
	err = w.until(func() []int { return missing }, func(l letter) error {
		switch l.Kind {
		case kindMemory:
			if seg, unmapped = openSegment(l.Path, s.size, l.Nonce); unmapped != nil {
				// Rank 0 may have given up, and the memory gone with that: it says so next, or else when it hears of this.
				s.fail(w.call, unmapped)
				return nil //nolint:nilerr // rank 0 has the last word
			}
			_ = zero.send(&message{Kind: kindMapped, Call: w.call}) // as above
		case kindStart:
			missing = nil
		}
		return nil
	})
	if broken := (*BrokenError)(nil); unmapped != nil && errors.As(err, &broken) && broken.Rank == s.rank {
		return nil, unmapped
	}
	if err != nil && seg != nil {
		// The others may have begun to use the group.
		end := newShared(seg, s.rank, s.limit, nil)
		end.Abort(err)
		_ = end.Close() // it has no errors
		return nil, err
	}
	return seg, err
}

// adopt makes this rank's end of a group, which breaks when a process of the session ends.
func (s *Session) adopt(seg *segment) *shared {
	var end *shared
	end = newShared(seg, s.rank, s.limit, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.groups, end.group)
	})
	s.mu.Lock()
	s.groups[end.group] = struct{}{}
	lost := s.lost
	s.mu.Unlock()
	if lost != nil {
		end.group.lose(lost.Rank, lost.Cause)
	}
	return end
}
