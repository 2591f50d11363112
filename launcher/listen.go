package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// listen binds rank 0's socket, so that nobody can take its port before rank 0 is there, and a port in use is known before anything
// starts. It gives the socket as a file that a worker can inherit, and the port, which the system has chosen if port is 0.
func listen(ctx context.Context, addr string, port int) (*os.File, int, error) {
	fail := func(err error) (*os.File, int, error) {
		var op *net.OpError
		if errors.As(err, &op) { // which repeats the address
			err = op.Err
		}
		var call *os.SyscallError
		if errors.As(err, &call) {
			err = call.Err
		}
		return nil, 0, &AddressError{Addr: addr, Port: port, Err: err}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
	if err != nil {
		return fail(err)
	}
	defer l.Close() //nolint:errcheck // the file is a socket of its own
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		panic(fmt.Sprintf("launcher: a TCP listener is a %T", l))
	}
	bound, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		panic(fmt.Sprintf("launcher: a TCP address is a %T", l.Addr()))
	}
	f, err := tcp.File()
	if err != nil {
		return fail(err)
	}
	return f, bound.Port, nil
}

// addressCure says what would work.
func addressCure(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "choose another port, or 0 for a free one, or end what listens there"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give an address of this host"
	case errors.Is(err, syscall.EACCES):
		return "choose a port from 1024, or 0 for a free one"
	default:
		return "give a name or an address of this host, and a port that is free, or 0"
	}
}
