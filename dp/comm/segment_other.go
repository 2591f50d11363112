//go:build !linux

package comm

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

var errNoSharedMemory = errors.New("ranks that are processes need Linux: here, train in one process, whose ranks are goroutines")

func createMemory(int) ([]byte, *os.File, error) { return nil, nil, errNoSharedMemory }
func mapMemory(string, int) ([]byte, error)      { return nil, errNoSharedMemory }
func unmapMemory([]byte)                         {}
func pidNamespace() (string, error)              { return "", errNoSharedMemory }
func bootID() (string, error)                    { return "", errNoSharedMemory }
func ring(bell *atomic.Uint32)                   { bell.Add(1) }

type sleeper struct{}

func (*sleeper) wait(*atomic.Uint32, uint32, time.Duration) {}
