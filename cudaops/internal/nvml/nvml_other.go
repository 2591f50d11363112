//go:build !(cgo && linux)

package nvml

import (
	"fmt"
	"runtime"
)

func openLibrary() (library, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("%w: not on %s", ErrUnavailable, runtime.GOOS)
	}
	return nil, fmt.Errorf("%w: this program was built without cgo; build it with CGO_ENABLED=1 and a C compiler", ErrUnavailable)
}
