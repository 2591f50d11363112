// Package cublas makes matrix products on a card with cuBLASLt, which is loaded at run time.
//
// [Open] gives the [Library], once a process; [Library.Handle] a [Handle] for a card, with a workspace that the caller has taken of the
// card's memory; [Handle.Plan] a [Plan] for one [Product], with everything that the library must decide decided. [Plan.Run] puts the product
// into the card's stream, or the one of [Handle.SetStream]: it neither allocates nor waits, and may be captured into a graph. [Plan.Tune] measures what the library offers,
// and what else can be made of that, on the caller's own buffers and stays with the fastest, which package choices remembers for later plans.
//
// cuBLASLt's matrices are column-major. What is row-major C = A B here is C' = B' A' there: the operands change places, and a matrix with a
// column stride of 1 is passed as it is, one with a row stride of 1 as transposed. Other strides the library cannot take: the error is a
// [*LayoutError], and the caller copies the operand first.
//
// The same plan gives the same bits every time: algorithms that add parts up in an order that may change are not used.
//
// A handle and its plans belong to the goroutine that drives the card, which has locked its thread and made the card's context current.
// A failed call of the library is an [*Error].
package cublas

import (
	"fmt"
	"sync"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/dl"
)

// Error is a failed call.
type Error struct {
	Func string // the library's function
	Code int32
	Name string // CUBLAS_STATUS_NOT_SUPPORTED
	Text string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d): %s", e.Func, e.Name, e.Code, e.Text)
}

// notSupported is the code of what the library does not have.
const notSupported = 15

// Library is cuBLASLt. It is safe for concurrent use.
type Library struct {
	lib       *dl.Library
	version   int
	remembers *choices.Store

	getVersion   func() uint64
	statusName   func(code int32) string
	statusString func(code int32) string

	create  func(handle *uintptr) int32
	destroy func(handle uintptr) int32

	layoutCreate  func(layout *uintptr, dtype int32, rows, cols uint64, ld int64) int32
	layoutDestroy func(layout uintptr) int32
	layoutSet     func(layout uintptr, attribute int32, value *uint64, size uint64) int32
	descCreate    func(desc *uintptr, compute, scale int32) int32
	descDestroy   func(desc uintptr) int32
	descSet       func(desc uintptr, attribute int32, value *uint64, size uint64) int32
	prefCreate    func(pref *uintptr) int32
	prefDestroy   func(pref uintptr) int32
	prefSet       func(pref uintptr, attribute int32, value *uint64, size uint64) int32

	heuristic func(handle, desc, a, b, c, d, pref uintptr, requested int32, results *heuristic, returned *int32) int32
	algoGet   func(algo *algorithm, attribute int32, value *uint64, size uint64, written *uint64) int32
	algoSet   func(algo *algorithm, attribute int32, value *uint64, size uint64) int32
	algoCheck func(handle, desc, a, b, c, d uintptr, algo *algorithm, result *heuristic) int32
	matmul    func(handle, desc uintptr, alpha *float32, a cuda.Ptr, aLayout uintptr, b cuda.Ptr, bLayout uintptr, beta *float32, c cuda.Ptr, cLayout uintptr,
		d cuda.Ptr, dLayout uintptr, algo *algorithm, workspace cuda.Ptr, bytes uint64, stream cuda.Stream) int32
}

// functions lists where each function of the library goes.
func (l *Library) functions() map[string]any {
	return map[string]any{
		"cublasLtGetVersion": &l.getVersion, "cublasLtGetStatusName": &l.statusName, "cublasLtGetStatusString": &l.statusString,
		"cublasLtCreate": &l.create, "cublasLtDestroy": &l.destroy,
		"cublasLtMatrixLayoutCreate": &l.layoutCreate, "cublasLtMatrixLayoutDestroy": &l.layoutDestroy, "cublasLtMatrixLayoutSetAttribute": &l.layoutSet,
		"cublasLtMatmulDescCreate": &l.descCreate, "cublasLtMatmulDescDestroy": &l.descDestroy, "cublasLtMatmulDescSetAttribute": &l.descSet,
		"cublasLtMatmulPreferenceCreate": &l.prefCreate, "cublasLtMatmulPreferenceDestroy": &l.prefDestroy, "cublasLtMatmulPreferenceSetAttribute": &l.prefSet,
		"cublasLtMatmulAlgoGetHeuristic": &l.heuristic, "cublasLtMatmulAlgoConfigGetAttribute": &l.algoGet,
		"cublasLtMatmulAlgoConfigSetAttribute": &l.algoSet, "cublasLtMatmulAlgoCheck": &l.algoCheck, "cublasLtMatmul": &l.matmul,
	}
}

// Open loads the library, the first time. Where there is none the error is a [*dl.MissingError].
var Open = sync.OnceValues(func() (*Library, error) { return open("libcublasLt.so.13", "libcublasLt.so.12") })

// open loads the library from the first file that there is of the names given.
func open(names ...string) (*Library, error) {
	lib, err := dl.Open("matrix products on CUDA cards", names...)
	if err != nil {
		return nil, fmt.Errorf("cublas: %w", err)
	}
	l := &Library{lib: lib}
	if err := lib.BindAll(l.functions()); err != nil {
		return nil, fmt.Errorf("cublas: %w", err)
	}
	l.version = int(l.getVersion())
	l.remembers = choices.Open("cublaslt")
	return l, nil
}

// Version is the library's version, such as 130100 for 13.1.
func (l *Library) Version() int { return l.version }

// Path is the library's file.
func (l *Library) Path() string { return l.lib.Path }

// check makes an error of a code.
func (l *Library) check(function string, code int32) error {
	if code == 0 {
		return nil
	}
	return &Error{Func: function, Code: code, Name: l.statusName(code), Text: l.statusString(code)}
}

// Handle is the library on one card.
type Handle struct {
	lib       *Library
	card      *cuda.Card
	name      string // of the card, for what is remembered
	workspace cuda.Ptr
	bytes     int64
	handle    uintptr
	stream    cuda.Stream
	measure   func(pace choices.Pace, run func() error) (float64, error)
}

// Handle makes the library ready for a card. Products use the workspace, which is the caller's and must lie on a 256-byte boundary (0: each plan
// gets one of its own); 32 MiB
// are enough for all that the library has for Hopper. The card's context must be current.
func (l *Library) Handle(card *cuda.Card, workspace cuda.Ptr, bytes int64) (*Handle, error) {
	device, err := card.DeviceGet(card.Ordinal)
	if err != nil {
		return nil, fmt.Errorf("cublas: card %d: %w", card.Ordinal, err)
	}
	name, err := card.DeviceName(device)
	if err != nil {
		return nil, fmt.Errorf("cublas: card %d: %w", card.Ordinal, err)
	}
	return l.on(card, name, workspace, bytes)
}

// on is Handle for a card whose name is known.
func (l *Library) on(card *cuda.Card, name string, workspace cuda.Ptr, bytes int64) (*Handle, error) {
	h := &Handle{lib: l, card: card, name: name, workspace: workspace, bytes: bytes, stream: card.Stream}
	h.measure = h.time
	if err := l.check("cublasLtCreate", l.create(&h.handle)); err != nil {
		return nil, fmt.Errorf("cublas: card %d: %w", card.Ordinal, err)
	}
	return h, nil
}

// SetStream makes plans run in another stream than the card's, such as one that is captured.
func (h *Handle) SetStream(s cuda.Stream) { h.stream = s }

// time is how many milliseconds the card takes for what run puts into the handle's stream.
func (h *Handle) time(pace choices.Pace, run func() error) (float64, error) {
	if err := h.card.StreamSynchronize(h.stream); err != nil {
		return 0, err
	}
	defer h.SetStream(h.stream)
	return choices.Measure(h.card.API, pace, func(s cuda.Stream) error {
		h.SetStream(s)
		return run()
	})
}

// Close gives the handle back, after its plans.
func (h *Handle) Close() error {
	return h.lib.check("cublasLtDestroy", h.lib.destroy(h.handle))
}
