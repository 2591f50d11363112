package comm

import (
	"fmt"
	"testing"
)

// NewShared makes a group whose ranks share memory as processes do, each with a mapping of its own.
func NewShared(t testing.TB, world int, opts ...Option) []Comm {
	t.Helper()
	cfg, err := configure(opts)
	if err != nil {
		t.Fatal(err)
	}
	if world == 1 {
		group, err := NewLocal(1, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return group
	}
	seg, file, err := newSegment(world)
	if err != nil {
		t.Fatal(err)
	}
	group := []Comm{newShared(seg, 0, cfg.limit, nil)}
	for r := 1; r < world; r++ {
		other, err := openSegment(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), world, seg.nonce())
		if err != nil {
			t.Fatal(err)
		}
		group = append(group, newShared(other, r, cfg.limit, nil))
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return group
}

// Kill ends a session's connections as the end of its process would, without goodbye.
func (s *Session) Kill() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, p := range s.peers {
		if p != nil {
			_ = p.conn.Close()
		}
	}
	s.readers.Wait()
}

// MaxWorld is how many ranks can share memory.
const MaxWorld = maxWorld

// Exported for tests that talk to a session as strangers do, and for fuzzing.
type Message = message

var (
	ReadFrame  = readFrame
	WriteFrame = writeFrame
)

// Asleep reports whether a rank of a group that shares memory sleeps in a call.
func Asleep(c Comm) bool {
	g := c.(*shared).group
	return g.seg.asleep(g.rank).Load() != 0
}

// Lose says on one rank's behalf that another one is gone.
func Lose(c Comm, rank int, cause error) { c.(*shared).group.lose(rank, cause) }

// Mapped reports whether a rank still has the group's memory.
func Mapped(c Comm) bool {
	g := c.(*shared).group
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seg.mem != nil
}
