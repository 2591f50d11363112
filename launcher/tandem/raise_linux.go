package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raise ends this process by a signal, so that what started it sees which: a shell stops its script at Ctrl-C only then. It comes back
// where the signal does not end the process, as for process 1 of a container.
func raise(sig syscall.Signal) {
	signal.Reset(sig)
	// Go's runtime answers SIGQUIT with a dump of goroutines and exit status 2. The system's own answer is wanted here, without a core.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	var byDefault [8]uint64 // the kernel's struct sigaction, of which all is zero
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	if errno == 0 && unix.Kill(os.Getpid(), sig) == nil {
		time.Sleep(time.Second) // it takes a moment to arrive
	}
}
