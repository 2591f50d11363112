// Package nvrtc compiles CUDA C++ to code of a card, at run time, with NVIDIA's library for that.
//
// [Compile] and [CompileAll] are all that most callers need: they give the code for sources, from the cache on disk where the same source has been
// compiled before. NVRTC itself reads one source at a time, some 20 ms each, and optimizes several at once, which takes ten times as long. [Open] gives the library itself, once for the process; without it the error is a [*dl.MissingError].
//
// # The cache
//
// It is the store "kernels" of package cache. An entry's key is the SHA-256 of the source, the options, the architecture and the library's version,
// so that an entry never needs to be replaced. A damaged or foreign one is compiled again.
//
// # Concurrency and errors
//
// All functions may be called from anywhere. Processes may share the cache. A source that does not compile gives a [*CompileError], which shows the
// compiler's log, each message with the line of the source that it is about.
package nvrtc

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/tandem-train/tandem/cudaops/internal/dl"
)

// handle is an nvrtcProgram.
type handle uintptr

// Library is NVRTC.
type Library struct {
	lib   *dl.Library
	archs []int // that it compiles for, ascending: 90 is sm_90

	Major, Minor int

	version       func(major, minor *int32) int32
	errorString   func(code int32) string
	numArchs      func(n *int32) int32
	supported     func(archs *int32) int32
	createProgram func(p *handle, source, name string, headers int32, contents, names unsafe.Pointer) int32
	destroy       func(p *handle) int32
	compile       func(p handle, n int32, options unsafe.Pointer) int32
	cubinSize     func(p handle, n *uint64) int32
	cubin         func(p handle, to *byte) int32
	ptxSize       func(p handle, n *uint64) int32
	ptx           func(p handle, to *byte) int32
	logSize       func(p handle, n *uint64) int32
	log           func(p handle, to *byte) int32
}

// Open opens the library, the first time.
var Open = sync.OnceValues(func() (*Library, error) {
	lib, err := dl.Open("compiling kernels", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
	if err != nil {
		return nil, err
	}
	return bind(lib)
})

func bind(lib *dl.Library) (*Library, error) {
	l := &Library{lib: lib}
	err := lib.BindAll(map[string]any{
		"nvrtcVersion": &l.version, "nvrtcGetErrorString": &l.errorString,
		"nvrtcGetNumSupportedArchs": &l.numArchs, "nvrtcGetSupportedArchs": &l.supported,
		"nvrtcCreateProgram": &l.createProgram, "nvrtcDestroyProgram": &l.destroy, "nvrtcCompileProgram": &l.compile,
		"nvrtcGetCUBINSize": &l.cubinSize, "nvrtcGetCUBIN": &l.cubin, "nvrtcGetPTXSize": &l.ptxSize, "nvrtcGetPTX": &l.ptx,
		"nvrtcGetProgramLogSize": &l.logSize, "nvrtcGetProgramLog": &l.log,
	})
	if err != nil {
		return nil, err
	}
	var major, minor, n int32
	if err := l.check("nvrtcVersion", l.version(&major, &minor)); err != nil {
		return nil, err
	}
	l.Major, l.Minor = int(major), int(minor)
	if err := l.check("nvrtcGetNumSupportedArchs", l.numArchs(&n)); err != nil {
		return nil, err
	}
	archs := make([]int32, max(n, 1))
	if err := l.check("nvrtcGetSupportedArchs", l.supported(&archs[0])); err != nil {
		return nil, err
	}
	for _, a := range archs[:n] {
		l.archs = append(l.archs, int(a))
	}
	slices.Sort(l.archs)
	return l, nil
}

// Path is the library's file.
func (l *Library) Path() string { return l.lib.Path }

// Error is a failed call.
type Error struct {
	Func string
	Code int32
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Func, e.Text, e.Code) }

func (l *Library) check(function string, code int32) error {
	if code == 0 {
		return nil
	}
	return &Error{Func: function, Code: code, Text: l.errorString(code)}
}

// compilation is NVRTC's code for a source that does not compile.
const compilation = 6

// target is the architecture to compile for where a card is arch ("sm_90"): that one, or, for a card newer than the library, the
// newest virtual one below it, from whose PTX the driver makes the card's code.
func (l *Library) target(arch string) (name string, virtual bool, err error) {
	want, err := strconv.Atoi(strings.TrimPrefix(arch, "sm_"))
	if err != nil {
		return "", false, fmt.Errorf("nvrtc: %q is no architecture such as sm_90", arch)
	}
	best := 0
	for _, a := range l.archs {
		if a <= want {
			best = a
		}
	}
	switch best {
	case want:
		const special = 90 // the first that has instructions which later ones do not: they take a name of its own
		if want >= special {
			arch += "a"
		}
		return arch, false, nil
	case 0:
		return "", false, fmt.Errorf("nvrtc: version %d.%d compiles for sm_%d and newer, not for %s: an older CUDA would", l.Major, l.Minor, l.archs[0], arch)
	}
	return fmt.Sprintf("compute_%d", best), true, nil
}

// build compiles source. A card's own code is what the driver loads as it is; PTX ends with a zero byte.
func (l *Library) build(source, target string, virtual bool) (image []byte, err error) {
	var p handle
	if err := l.check("nvrtcCreateProgram", l.createProgram(&p, source, sourceName, 0, nil, nil)); err != nil {
		return nil, err
	}
	defer func() {
		if e := l.check("nvrtcDestroyProgram", l.destroy(&p)); err == nil && e != nil {
			image, err = nil, e
		}
	}()
	args := append(slices.Clone(l.options()), "--gpu-architecture="+target)
	lines := make([][]byte, len(args))
	at := make([]*byte, len(args))
	for i, a := range args {
		lines[i] = append([]byte(a), 0)
		at[i] = &lines[i][0]
	}
	code := l.compile(p, int32(len(at)), unsafe.Pointer(&at[0]))
	runtime.KeepAlive(lines)
	if code == compilation {
		log, err := l.read(p, "nvrtcGetProgramLog", l.logSize, l.log)
		if err != nil {
			return nil, err
		}
		return nil, &CompileError{Target: target, Log: strings.TrimRight(string(log), "\x00\n"), Source: source}
	}
	if err := l.check("nvrtcCompileProgram", code); err != nil {
		return nil, err
	}
	if virtual {
		return l.read(p, "nvrtcGetPTX", l.ptxSize, l.ptx)
	}
	return l.read(p, "nvrtcGetCUBIN", l.cubinSize, l.cubin)
}

// read gets one of a program's results.
func (l *Library) read(p handle, function string, size func(handle, *uint64) int32, get func(handle, *byte) int32) ([]byte, error) {
	var n uint64
	if err := l.check(function+"Size", size(p, &n)); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	b := make([]byte, n)
	return b, l.check(function, get(p, &b[0]))
}
