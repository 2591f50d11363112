//go:build !amd64 || noasm

package kernel

import "fmt"

const bestLevel = Go

func levelKernels(l Level) *kernels {
	if l > bestLevel {
		panic(fmt.Sprintf("kernel: level %v in a build that has only %v", l, bestLevel))
	}
	return &goLevel
}
