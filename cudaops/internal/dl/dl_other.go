//go:build !linux

package dl

import "errors"

var errNotHere = errors.New("CUDA cards need Linux")

func load(string) (uintptr, error) { return 0, errNotHere }

// Bind fails.
func (*Library) Bind(any, string) error { return errNotHere }

// Do is never called: no library can be opened.
func (Call) Do(...uintptr) int32 { panic(errNotHere) }
