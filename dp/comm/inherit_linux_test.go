package comm_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// inherit is a descriptor of the listener's socket that belongs to nobody, as one that a process was started with.
func inherit(t *testing.T, l net.Listener) int {
	t.Helper()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
