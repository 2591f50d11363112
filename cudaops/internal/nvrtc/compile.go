package nvrtc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-train/tandem/cudaops/internal/cache"
)

// sourceName is what the compiler calls a source in its messages.
const sourceName = "tandem.cu"

// options are what every source is compiled with: products and sums may be one instruction, but division, roots and small numbers stay as
// IEEE 754 has them.
var options = []string{"--std=c++17", "--fmad=true"}

// options are those of this version. Without the declarations of the runtime, which no source of ours needs, it reads a small source in half of the time.
func (l *Library) options() []string {
	if l.Major >= 13 {
		return append(slices.Clone(options), "--minimal")
	}
	return options
}

// CompileError is a source that does not compile.
type CompileError struct {
	Target string // "sm_90"
	Log    string // the compiler's
	Source string
}

var place = regexp.MustCompile(regexp.QuoteMeta(sourceName) + `\((\d+)\)`)

// Error shows the log, and below each message the line that it is about.
func (e *CompileError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nvrtc: compile for %s:", e.Target)
	lines := strings.Split(e.Source, "\n")
	for message := range strings.Lines(e.Log) {
		message = strings.TrimRight(message, "\n")
		if message == "" {
			continue
		}
		b.WriteString("\n\t" + message)
		if m := place.FindStringSubmatch(message); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= len(lines) {
				fmt.Fprintf(&b, "\n\t%5d | %s", n, lines[n-1])
			}
		}
	}
	return b.String()
}

// compiler is what turns source into code: a [Library], or a test's.
type compiler interface {
	target(arch string) (name string, virtual bool, err error)
	build(source, target string, virtual bool) ([]byte, error)
	options() []string
	id() string // what else its results depend on
}

func (l *Library) id() string { return fmt.Sprintf("nvrtc %d.%d", l.Major, l.Minor) }

// Compile gives the code of source for a card of that architecture ("sm_90"), as cuModuleLoadData takes it.
func Compile(source, arch string) ([]byte, error) {
	lib, err := Open()
	if err != nil {
		return nil, err
	}
	return compileWith(lib, kernels(), source, arch)
}

// CompileAll gives the code of sources, in their order. As many are compiled at a time as there are cores; while that goes on for more than a second,
// lines on standard error say how far it has come.
func CompileAll(sources []string, arch string) ([][]byte, error) {
	if len(sources) == 0 {
		return nil, nil
	}
	lib, err := Open()
	if err != nil {
		return nil, err
	}
	return compileAll(lib, kernels(), said, sources, arch)
}

func compileAll(c compiler, store *cache.Store, r *report, sources []string, arch string) ([][]byte, error) {
	defer r.expect(sources)()
	images := make([][]byte, len(sources))
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for i, source := range sources {
		all.Go(func() (err error) {
			images[i], err = compileWith(c, store, source, arch)
			r.done(source)
			return err
		})
	}
	return images, all.Wait()
}

// busy has a lock for every source that is being compiled: where several cards load one program at once, the first compiles it.
var busy keyed

func compileWith(c compiler, store *cache.Store, source, arch string) ([]byte, error) {
	target, virtual, err := c.target(arch)
	if err != nil {
		return nil, err
	}
	key := keyOf(source, strings.Join(c.options(), " "), target, c.id())
	defer busy.lock(key)()
	if image, ok := store.Get(key); ok {
		return image, nil
	}
	image, err := c.build(source, target, virtual)
	if err != nil {
		return nil, err
	}
	store.Put(key, image, func([]byte) bool { return true }) // where it can't be kept, that costs time only
	return image, nil
}

// kernels is where code is kept.
func kernels() *cache.Store {
	return cache.Open("kernels", "compiled kernels are not kept, so that every start compiles them")
}

// keyOf is the name of the code that depends on all parts.
func keyOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n%s\n", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// keyed is a lock a key.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*entry
}

type entry struct {
	sync.Mutex
	users int
}

// lock takes the lock of a key; the function that it returns gives it back.
func (k *keyed) lock(key string) (unlock func()) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*entry{}
	}
	e := k.locks[key]
	if e == nil {
		e = &entry{}
		k.locks[key] = e
	}
	e.users++
	k.mu.Unlock()
	e.Lock()
	return func() {
		e.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(k.locks, key)
		}
	}
}
