// Package nccl moves data between cards with NCCL, which is loaded at run time.
//
// [Open] gives the [Library], once a process. One rank makes an [ID] ([Library.NewID]) and tells it to the others by other means; then every
// rank calls [Library.Init] with it, on the thread on which its card's context is current, and all return with a [Comm] each when all have
// come. The collectives of a Comm put work into a stream, which may be captured into a graph. Every rank makes the same calls in the same
// order; those that are to be one launch come between the braces of [Comm.Group].
//
// A collective that waits in a stream for a rank that never comes waits forever. [Comm.Abort] ends that, from any thread.
//
// Open sets two variables that the library reads, unless the user has. NCCL_NVLS_ENABLE=0: NVLink multicast is off, which on some machines
// can put cards out of service. NCCL_GRAPH_MIXING_SUPPORT=0: a Comm's work is in one order, in graphs and outside, so that NCCL need not see
// to it, which costs 1 µs a collective.
//
// The order in which NCCL adds depends on the number of ranks and the size, not on timing: the same calls give the same bits again.
//
// One goroutine at a time uses a Comm, and what it puts into streams is done in the order of the calls, which the caller sees to; only Abort and AsyncError may be called meanwhile from elsewhere. A failed call is an [*Error].
package nccl

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/tandem-train/tandem/cudaops/internal/dl"
)

// Error is a failed call.
type Error struct {
	Func string // the library's function
	Code int32
	Text string // of the code
	Last string // what the library last found wrong, in words; may be empty
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d)", e.Func, e.Text, e.Code)
	if e.Last != "" {
		s += ": " + e.Last
	}
	return s
}

// Library is NCCL. It is safe for concurrent use.
type Library struct {
	lib     *dl.Library
	version int

	getVersion  func(version *int32) int32
	getUniqueID func(id *ID) int32
	initRank    func(comm *uintptr, world int32, id ID, rank int32) int32
	destroy     func(comm uintptr) int32
	abort       func(comm uintptr) int32
	asyncError  func(comm uintptr, code *int32) int32
	errorString func(code int32) string
	lastError   func(comm uintptr) string
	groupStart  func() int32
	groupEnd    func() int32
	calls
}

// functions lists where each function of the library goes.
func (l *Library) functions() map[string]any {
	return map[string]any{
		"ncclGetVersion": &l.getVersion, "ncclGetUniqueId": &l.getUniqueID, "ncclCommInitRank": &l.initRank,
		"ncclCommDestroy": &l.destroy, "ncclCommAbort": &l.abort, "ncclCommGetAsyncError": &l.asyncError,
		"ncclGetErrorString": &l.errorString, "ncclGetLastError": &l.lastError,
		"ncclGroupStart": &l.groupStart, "ncclGroupEnd": &l.groupEnd,
		"ncclAllReduce": &l.allReduce, "ncclReduce": &l.reduce, "ncclBroadcast": &l.broadcast,
		"ncclReduceScatter": &l.reduceScatter, "ncclAllGather": &l.allGather,
	}
}

// Open loads the library, the first time. Where there is none the error is a [*dl.MissingError].
var Open = sync.OnceValues(func() (*Library, error) { return open("libnccl.so.2") })

// open loads the library from the first file that there is of the names given.
func open(names ...string) (*Library, error) {
	for variable, value := range map[string]string{"NCCL_NVLS_ENABLE": "0", "NCCL_GRAPH_MIXING_SUPPORT": "0"} {
		if _, set := os.LookupEnv(variable); set {
			continue
		}
		if err := os.Setenv(variable, value); err != nil { // in C's environment too
			return nil, fmt.Errorf("nccl: %w", err)
		}
	}
	lib, err := dl.Open("moving data between CUDA cards", names...)
	if err != nil {
		return nil, fmt.Errorf("nccl: %w", err)
	}
	l := &Library{lib: lib}
	if err := lib.BindAll(l.functions()); err != nil {
		return nil, fmt.Errorf("nccl: %w", err)
	}
	var v int32
	if err := l.check("ncclGetVersion", l.getVersion(&v), 0); err != nil {
		return nil, fmt.Errorf("nccl: %w", err)
	}
	l.version = int(v)
	return l, nil
}

// Version is the library's version, such as 22809 for 2.28.9.
func (l *Library) Version() int { return l.version }

// Path is the library's file.
func (l *Library) Path() string { return l.lib.Path }

// check makes an error of a code. comm is what the call was on, or 0.
func (l *Library) check(function string, code int32, comm uintptr) error {
	if code == 0 {
		return nil
	}
	return &Error{Func: function, Code: code, Text: l.errorString(code), Last: l.lastError(comm)}
}

// idBytes is the size of an ID.
const idBytes = 128

// ID names a group of ranks that is to be made.
type ID struct{ bytes [idBytes]byte }

// Bytes are what the other ranks must have to make the same ID.
func (id *ID) Bytes() []byte { return id.bytes[:] }

// NewID makes an ID. The ranks meet at this process, which must live until all have.
func (l *Library) NewID() (ID, error) {
	var id ID
	err := l.check("ncclGetUniqueId", l.getUniqueID(&id), 0)
	return id, err
}

// Comm is one rank's end of a group.
type Comm struct {
	lib     *Library
	handle  uintptr
	aborted atomic.Bool
}

// Init joins the group of an ID as one of so many ranks, on the card whose context is current. It waits for all of them.
func (l *Library) Init(id ID, rank, world int) (*Comm, error) {
	c := &Comm{lib: l}
	if err := l.check("ncclCommInitRank", l.initRank(&c.handle, int32(world), id, int32(rank)), 0); err != nil {
		return nil, err
	}
	return c, nil
}

// Destroy leaves the group, when what it has put into streams is done and graphs that hold its work are gone. It may wait for the other
// ranks of this process to do the same.
func (c *Comm) Destroy() error {
	return c.lib.check("ncclCommDestroy", c.lib.destroy(c.handle), 0)
}

// Abort makes what the group has put into streams end, without a result, and leaves the group in place of Destroy. It returns when graphs
// that hold its work are gone. Only the first call does something.
func (c *Comm) Abort() error {
	if c.aborted.Swap(true) {
		return nil
	}
	return c.lib.check("ncclCommAbort", c.lib.abort(c.handle), 0)
}

// AsyncError is what went wrong since the calls that began it returned, or nil.
func (c *Comm) AsyncError() error {
	var code int32
	if err := c.lib.check("ncclCommGetAsyncError", c.lib.asyncError(c.handle, &code), c.handle); err != nil {
		return err
	}
	return c.lib.check("in the background", code, c.handle)
}

// Group makes one launch of the collectives that f calls on this thread.
func (c *Comm) Group(f func() error) error {
	if err := c.lib.check("ncclGroupStart", c.lib.groupStart(), c.handle); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, c.lib.check("ncclGroupEnd", c.lib.groupEnd(), c.handle))
}
