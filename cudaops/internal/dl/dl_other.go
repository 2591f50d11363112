//go:build !linux

package dl

import "errors"

var errNotHere = errors.New("CUDA cards need Linux")

func load(string) (uintptr, error) { return 0, errNotHere }

// Bind fails.
func (*Library) Bind(any, string) error { return errNotHere }
