//go:build !linux

package main

import "syscall"

// raise would end this process by a signal. Jobs run on Linux only, so there is none to pass on.
func raise(syscall.Signal) {}
