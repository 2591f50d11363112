package atomicfile

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nameless makes a file in the folder of path that has no name, so that nothing of it stays where the process is killed. It is nil where the file
// system has no such files.
var nameless = func(path string) *os.File {
	fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	if _, err := os.Stat(itself(f)); err != nil { // there is no /proc
		_ = f.Close()
		return nil
	}
	return f
}

// name gives a nameless file a name.
func name(f *os.File, name string) error {
	err := unix.Linkat(unix.AT_FDCWD, itself(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: itself(f), New: name, Err: err}
	}
	return nil
}

// itself is where an open file can be had by a name.
func itself(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
