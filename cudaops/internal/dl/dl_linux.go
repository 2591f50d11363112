package dl

import (
	"fmt"

	"github.com/ebitengine/purego"
)

func load(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

// Bind makes *fn, a pointer to a [Call] or to a variable of a function type, the library's function of that name. Its types must be those of the C
// function: nothing checks them.
func (l *Library) Bind(fn any, name string) error {
	symbol, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return fmt.Errorf("%s has no %s: a newer version is needed: %w", l.Path, name, err)
	}
	if call, ok := fn.(*Call); ok {
		*call = Call(symbol)
		return nil
	}
	purego.RegisterFunc(fn, symbol)
	return nil
}

// Do calls the function.
func (c Call) Do(args ...uintptr) int32 {
	code, _, _ := purego.SyscallN(uintptr(c), args...)
	return int32(code)
}
