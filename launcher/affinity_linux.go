package launcher

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// onCPUs calls start while this thread may run on the given processors only, which a process that it starts inherits. The caller has
// locked its goroutine to the thread.
func onCPUs(cpus []int, start func() error) (err error) {
	if len(cpus) == 0 {
		return start()
	}
	var before, during unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the processors of this thread: %w", err)
	}
	for _, cpu := range cpus {
		during.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &during); err != nil {
		return fmt.Errorf("run on CPUs %v: %w: are they there, and open to this process?", cpus, err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &before)) }()
	return start()
}
