//go:build !linux

package atomicfile

import "os"

// nameless is nil: every file has a name from the start, and stays where the process is killed.
var nameless = func(string) *os.File { return nil }

func name(*os.File, string) error { panic("atomicfile: a file without a name") }
