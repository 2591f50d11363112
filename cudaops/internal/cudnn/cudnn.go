// Package cudnn makes 2-d convolutions and their gradients on a card with cuDNN 9, which is loaded at run time.
//
// [Open] gives the [Library], once a process; [Library.Handle] a [Handle] for a card; [Handle.Conv] a [Plan] for one [Conv]: an algorithm
// that the library has for these shapes, that gives the same bits every time, and that needs no more workspace than the handle allows: most
// algorithms bring their operands into another order first, and where that is too much memory the batch is cut into pieces.
// [Plan.Run] puts the convolution into the card's stream: it neither allocates nor waits, and may be captured into a graph. [Plan.Tune]
// measures what the library offers on the caller's own buffers and stays with the fastest, which package choices remembers for later plans.
//
// The functions are those that cuDNN 9 calls legacy, older than its graphs of operations. Timed on an H200 inside CUDA graphs, with cuDNN 9.19,
// they are 0.9 to 1.15 times as fast as PyTorch 2.11, which builds graphs of operations and tries what there is, in a 3x3 layer of 128 channels in
// the order NCHW, and 0.65 to 1.8 times in one of a single channel. With channels last that layer is 1.4 to 1.7 times as fast in TF32 as
// otherwise, and 0.25 to 0.4 times in exact float32.
//
// The library is several files that load one another; they must lie in one folder, or in the loader's path.
//
// A handle and its plans belong to the goroutine that drives the card, which has locked its thread and made the card's context current.
// A failed call of the library is an [*Error].
package cudnn

import (
	"bytes"
	"errors"
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
	Name string // CUDNN_STATUS_NOT_SUPPORTED
	Text string // what the library says of its last failure; may be empty
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %s (%d)", e.Func, e.Name, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Func, e.Name, e.Code, e.Text)
}

// notSupported is the first of the codes of what the library does not have.
const notSupported = 3000

// Unsupported reports whether an error says that the library has nothing for an operation.
func Unsupported(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code/1000*1000 == notSupported
}

// Library is cuDNN. It is safe for concurrent use.
type Library struct {
	lib       *dl.Library
	version   int
	remembers *choices.Store

	getVersion  func() uint64
	errorString func(code int32) string
	lastError   func(text *byte, size uint64)

	create    func(handle *uintptr) int32
	destroy   func(handle uintptr) int32
	setStream func(handle uintptr, stream cuda.Stream) int32

	tensorCreate      func(desc *uintptr) int32
	tensorDestroy     func(desc uintptr) int32
	tensorSet         func(desc uintptr, format, dtype, n, c, h, w int32) int32
	filterCreate      func(desc *uintptr) int32
	filterDestroy     func(desc uintptr) int32
	filterSet         func(desc uintptr, dtype, format, o, c, h, w int32) int32
	convCreate        func(desc *uintptr) int32
	convDestroy       func(desc uintptr) int32
	convSet           func(desc uintptr, padH, padW, strideH, strideW, dilationH, dilationW, mode, compute int32) int32
	convSetMath       func(desc uintptr, math int32) int32
	convSetGroups     func(desc uintptr, groups int32) int32
	activationCreate  func(desc *uintptr) int32
	activationDestroy func(desc uintptr) int32
	activationSet     func(desc uintptr, mode, nan int32, coefficient float64) int32

	// by Kind
	algorithms [3]func(handle, in0, in1, conv, out uintptr, requested int32, returned *int32, results *performance) int32
	workspace  [3]func(handle, in0, in1, conv, out uintptr, algo int32, bytes *uint64) int32
	run        [3]func(handle uintptr, alpha *float32, in0Desc uintptr, in0 cuda.Ptr, in1Desc uintptr, in1 cuda.Ptr, conv uintptr, algo int32,
		workspace cuda.Ptr, bytes uint64, beta *float32, outDesc uintptr, out cuda.Ptr) int32

	fused func(handle uintptr, alpha1 *float32, xDesc uintptr, x cuda.Ptr, wDesc uintptr, w cuda.Ptr, conv uintptr, algo int32, workspace cuda.Ptr, bytes uint64,
		alpha2 *float32, zDesc uintptr, z cuda.Ptr, biasDesc uintptr, bias cuda.Ptr, activation, yDesc uintptr, y cuda.Ptr) int32
	addTensor  func(handle uintptr, alpha *float32, aDesc uintptr, a cuda.Ptr, beta *float32, cDesc uintptr, c cuda.Ptr) int32
	activation func(handle, desc uintptr, alpha *float32, xDesc uintptr, x cuda.Ptr, beta *float32, yDesc uintptr, y cuda.Ptr) int32
}

// kindNames are what the three operations are called in the library's functions.
var kindNames = [...]string{Forward: "Forward", GradX: "BackwardData", GradW: "BackwardFilter"}

// functions lists where each function of the library goes.
func (l *Library) functions() map[string]any {
	all := map[string]any{
		"cudnnGetVersion": &l.getVersion, "cudnnGetErrorString": &l.errorString, "cudnnGetLastErrorString": &l.lastError,
		"cudnnCreate": &l.create, "cudnnDestroy": &l.destroy, "cudnnSetStream": &l.setStream,
		"cudnnCreateTensorDescriptor": &l.tensorCreate, "cudnnDestroyTensorDescriptor": &l.tensorDestroy, "cudnnSetTensor4dDescriptor": &l.tensorSet,
		"cudnnCreateFilterDescriptor": &l.filterCreate, "cudnnDestroyFilterDescriptor": &l.filterDestroy, "cudnnSetFilter4dDescriptor": &l.filterSet,
		"cudnnCreateConvolutionDescriptor": &l.convCreate, "cudnnDestroyConvolutionDescriptor": &l.convDestroy,
		"cudnnSetConvolution2dDescriptor": &l.convSet, "cudnnSetConvolutionMathType": &l.convSetMath, "cudnnSetConvolutionGroupCount": &l.convSetGroups,
		"cudnnCreateActivationDescriptor": &l.activationCreate, "cudnnDestroyActivationDescriptor": &l.activationDestroy, "cudnnSetActivationDescriptor": &l.activationSet,
		"cudnnConvolutionBiasActivationForward": &l.fused, "cudnnAddTensor": &l.addTensor, "cudnnActivationForward": &l.activation,
	}
	for kind, name := range kindNames {
		all["cudnnGetConvolution"+name+"Algorithm_v7"] = &l.algorithms[kind]
		all["cudnnGetConvolution"+name+"WorkspaceSize"] = &l.workspace[kind]
		all["cudnnConvolution"+name] = &l.run[kind]
	}
	return all
}

// Open loads the library, the first time. Where there is none the error is a [*dl.MissingError].
var Open = sync.OnceValues(func() (*Library, error) { return open("libcudnn.so.9") })

// open loads the library from a file.
func open(name string) (*Library, error) {
	lib, err := dl.Open("convolutions on CUDA cards", name)
	if err != nil {
		return nil, fmt.Errorf("cudnn: %w", err)
	}
	l := &Library{lib: lib}
	if err := lib.BindAll(l.functions()); err != nil {
		return nil, fmt.Errorf("cudnn: %w", err)
	}
	l.version = int(l.getVersion())
	l.remembers = choices.Open("cudnn")
	return l, nil
}

// Version is the library's version, such as 91501 for 9.15.1.
func (l *Library) Version() int { return l.version }

// Path is the library's file. Its other files are looked for in the same folder.
func (l *Library) Path() string { return l.lib.Path }

// check makes an error of a code.
func (l *Library) check(function string, code int32) error {
	if code == 0 {
		return nil
	}
	text := make([]byte, 512)
	l.lastError(&text[0], uint64(len(text)))
	text, _, _ = bytes.Cut(text, []byte{0})
	return &Error{Func: function, Code: code, Name: l.errorString(code), Text: string(bytes.TrimSpace(text))}
}

// Handle is the library on one card.
type Handle struct {
	// MaxWorkspace is how many bytes of workspace a plan may need. It counts for plans that are made later.
	MaxWorkspace int64

	// leastPiece is how many bytes of x and y are worth a call of their own: with fewer a part of the card is idle.
	leastPiece int64

	lib     *Library
	card    *cuda.Card
	name    string // of the card, for what is remembered
	handle  uintptr
	stream  cuda.Stream
	measure func(run func() error) (float64, error)
}

// Handle makes the library ready for a card, whose context must be current.
func (l *Library) Handle(card *cuda.Card) (*Handle, error) {
	device, err := card.DeviceGet(card.Ordinal)
	if err != nil {
		return nil, fmt.Errorf("cudnn: card %d: %w", card.Ordinal, err)
	}
	name, err := card.DeviceName(device)
	if err != nil {
		return nil, fmt.Errorf("cudnn: card %d: %w", card.Ordinal, err)
	}
	return l.on(card, name)
}

// on is Handle for a card whose name is known.
func (l *Library) on(card *cuda.Card, name string) (*Handle, error) {
	h := &Handle{MaxWorkspace: 256 << 20, leastPiece: 8 << 20, lib: l, card: card, name: name}
	h.measure = h.time
	if err := l.check("cudnnCreate", l.create(&h.handle)); err != nil {
		return nil, fmt.Errorf("cudnn: card %d: %w; the files beside %s belong to it and must be of its version", card.Ordinal, err, l.Path())
	}
	if err := h.SetStream(card.Stream); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// SetStream makes plans run in another stream than the card's, such as one that is captured.
func (h *Handle) SetStream(s cuda.Stream) error {
	if err := h.lib.check("cudnnSetStream", h.lib.setStream(h.handle, s)); err != nil {
		return fmt.Errorf("cudnn: card %d: %w", h.card.Ordinal, err)
	}
	h.stream = s
	return nil
}

// time is how many milliseconds the card takes for what run puts into the handle's stream.
func (h *Handle) time(run func() error) (ms float64, err error) {
	own := h.stream
	if err := h.card.StreamSynchronize(own); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, h.SetStream(own)) }()
	return choices.Measure(h.card.API, choices.Brief, func(s cuda.Stream) error {
		if s != h.stream {
			if err := h.SetStream(s); err != nil {
				return err
			}
		}
		return run()
	})
}

// Close gives the handle back, after its plans.
func (h *Handle) Close() error { return h.lib.check("cudnnDestroy", h.lib.destroy(h.handle)) }
