//go:build !linux

package launcher

import (
	"context"
	"errors"
	"runtime"
	"syscall"
)

// run says that there is no launcher here.
func run(context.Context, Config) error {
	return errors.New("launcher: it needs Linux, where workers end with their launcher; this is " + runtime.GOOS)
}

func signalName(sig syscall.Signal) string { return sig.String() }
