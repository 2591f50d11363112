package comm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

// Which errors of looking for rank 0 are worth another try.
func TestPassing(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), true},
		{dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), true},
		{dial(&net.DNSError{Err: "no such host", Name: "node0", IsNotFound: true}), true},
		{fmt.Errorf("read: %w", os.ErrDeadlineExceeded), true},
		{os.NewSyscallError("read", syscall.ECONNRESET), true},
		{io.EOF, true},
		{errors.Join(io.ErrUnexpectedEOF), true},
		{context.Canceled, true}, // the caller looks at its context
		{dial(&net.AddrError{Err: "too many colons in address", Addr: "::1:2"}), false},
		{&frameError{errors.New("a message of 1213486160 bytes")}, false},
	} {
		if got := passing(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}
