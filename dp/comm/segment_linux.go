package comm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// createMemory makes memory without a name and maps it. All of it is taken now: what is missing is an error here and not the end
// of a process that touches it later.
func createMemory(size int) (mem []byte, file *os.File, err error) {
	fd, err := unix.MemfdCreate("tandem", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("memfd_create: %w", err)
	}
	file = os.NewFile(uintptr(fd), "shared memory")
	for {
		err = unix.Fallocate(fd, 0, 0, int64(size))
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("fallocate: %w: free memory of the host, raise the container's memory limit, or start fewer ranks", err)
	} else {
		mem, err = mapFD(fd, size)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return mem, file, nil
}

// mapMemory maps memory that another process made.
func mapMemory(path string, size int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: the ranks of a host must run as the same user", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(size) {
		return nil, fmt.Errorf("%s has %d bytes, want %d: every rank must run the same version", path, info.Size(), size)
	}
	return mapFD(int(f.Fd()), size)
}

func mapFD(fd, size int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return mem, nil
}

func unmapMemory(mem []byte) {
	if err := unix.Munmap(mem); err != nil {
		panic(fmt.Sprintf("comm: munmap: %v", err))
	}
}

// Operations of futex(2), shared between processes.
const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// sleeper is where one goroutine at a time sleeps.
type sleeper struct{ left unix.Timespec }

// wait sleeps until the bell is rung, the time passes, or for no reason. It returns at once when the bell is not at seen any more.
func (s *sleeper) wait(bell *atomic.Uint32, seen uint32, limit time.Duration) {
	s.left = unix.NsecToTimespec(int64(limit))
	// The reasons for which it fails (rung, late, interrupted) are the reasons for which it returns.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), futexWaitOp, uintptr(seen), uintptr(unsafe.Pointer(&s.left)), 0, 0)
}

// ring wakes whoever sleeps at the bell.
func ring(bell *atomic.Uint32) {
	bell.Add(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), futexWakeOp, 1<<30, 0, 0, 0)
}

// pidNamespace names the process numbers that this process sees.
func pidNamespace() (string, error) { return os.Readlink("/proc/self/ns/pid") }

// bootID names this start of the host.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(text), err
}
