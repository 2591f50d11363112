//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

func allowedCPUs() ([]int, error) {
	return nil, fmt.Errorf("workers are bound to CPUs on Linux only, not on %s", runtime.GOOS)
}
