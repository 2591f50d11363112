package cudaops

import "golang.org/x/sys/unix"

// SimulatedMark begins the name of the mapping by which other processes see what a
// process holds of a simulated card; the card's UUID follows.
const SimulatedMark = "/memfd:tandem-"

// markSim maps bytes of nothing, without access, under the card's name: it takes
// addresses only, is listed in /proc/PID/maps, and goes with the process. Where the
// system does not allow it others see nothing of this one's use, as of any host
// memory, and the card works all the same: then it gives nil.
func markSim(uuid string, bytes int64) []byte {
	fd, err := unix.MemfdCreate("tandem-"+uuid, unix.MFD_CLOEXEC)
	if err != nil {
		return nil
	}
	mark, err := unix.Mmap(fd, 0, int(bytes), unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if unix.Close(fd) != nil || err != nil {
		return nil
	}
	return mark
}

func unmarkSim(mark []byte) error {
	if mark == nil {
		return nil
	}
	return unix.Munmap(mark)
}
