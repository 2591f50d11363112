package cudaops

import (
	"strings"

	"golang.org/x/sys/unix"
)

// SimulatedMark begins the name of the mapping by which other processes see what a
// process holds of a simulated card; the card's UUID follows.
const SimulatedMark = "/memfd:tandem-"

// LimitMark begins the name of the mapping by which other processes see how much of
// a card a process may hold, real cards included; the card's UUID, a dash and the
// bytes follow.
const LimitMark = SimulatedMark + "limit-"

// markFor maps bytes of nothing, without access, under a name that begins with one of
// the above: it takes addresses only, is listed in /proc/PID/maps, and goes with the
// process. Where the system does not allow it others see nothing of it, and the card
// works all the same: then it gives nil.
func markFor(name string, bytes int64) []byte {
	fd, err := unix.MemfdCreate(strings.TrimPrefix(name, "/memfd:"), unix.MFD_CLOEXEC)
	if err != nil {
		return nil
	}
	mark, err := unix.Mmap(fd, 0, int(bytes), unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if unix.Close(fd) != nil || err != nil {
		return nil
	}
	return mark
}

func unmark(mark []byte) error {
	if mark == nil {
		return nil
	}
	return unix.Munmap(mark)
}
