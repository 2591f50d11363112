package comm_test

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInheritedSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the launcher's own, which stays open
	all := places(t, 2)
	for _, p := range all {
		p.Port = l.Addr().(*net.TCPAddr).Port
	}
	all[0].ListenFD = inherit(t, l)
	_, errs := newGroup(t.Context(), connectAll(t, all), noFacts)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

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
