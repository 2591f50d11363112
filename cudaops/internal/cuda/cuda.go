// Package cuda is CUDA's driver interface, as far as Tandem uses it, loaded at run time.
//
// [Load] opens libcuda once for the process. Its functions have the driver's names without the cu, take and give Go types, and return a
// [*Error] that says the function, the code, its name and the driver's text. Like the driver itself they work on the context that is
// current on the calling thread: callers lock their goroutine to its thread and call [API.CtxSetCurrent] first.
//
// Handles and device addresses are numbers, which the garbage collector does not know.
package cuda

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/tandem-train/tandem/cudaops/internal/dl"
)

type (
	// Device is a card, as the driver numbers it.
	Device int32
	// Context is a process's state on a card.
	Context uintptr
	// Stream is work that a card does in order.
	Stream uintptr
	// Event is a place in a stream.
	Event uintptr
	// Module is kernels that are loaded on a card.
	Module uintptr
	// Function is a kernel.
	Function uintptr
	// Graph is work that was captured.
	Graph uintptr
	// GraphExec is a graph that can be launched.
	GraphExec uintptr
	// Ptr is an address in a card's memory.
	Ptr uint64
	// IPCHandle is how another process opens memory of a card.
	IPCHandle [64]byte
)

// Error is a failed call.
type Error struct {
	Func string // the driver's function
	Code int32
	Name string // CUDA_ERROR_OUT_OF_MEMORY
	Text string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d): %s", e.Func, e.Name, e.Code, e.Text)
}

// Codes that callers tell apart.
const (
	Success       = 0
	OutOfMemory   = 2
	NoDevice      = 100
	InvalidDevice = 101
	NotReady      = 600
	// PeerAccessAlreadyEnabled is what enabling it again gives.
	PeerAccessAlreadyEnabled = 704
	uuidBytes                = 16
	nameBytes                = 256
)

// Attributes of a device.
const (
	MultiprocessorCount     = 16
	ComputeCapabilityMajor  = 75
	ComputeCapabilityMinor  = 76
	MaxSharedMemoryPerBlock = 97 // with opt-in
	L2CacheSize             = 38
	ClockRate               = 13
)

// Flags.
const (
	StreamNonBlocking  = 1
	EventDisableTiming = 2
	CaptureThreadLocal = 1
	// FuncMaxDynamicSharedMemory is the attribute by which a kernel may have more than 48 KiB of shared memory.
	FuncMaxDynamicSharedMemory = 8
	// FuncSharedMemoryShare is how much of the memory that is shared memory and cache a kernel had better have as shared memory, in percent.
	FuncSharedMemoryShare = 9
)

// ipcHandle is an IPCHandle as C passes it by value.
type ipcHandle struct{ bytes IPCHandle }

// API is the driver. Its functions are safe for concurrent use, as the driver's are.
type API struct {
	lib *dl.Library

	// What steps call.
	ctxSetCurrent, memcpyHtoD, memcpyDtoH, memcpyDtoD, streamWait, eventRecord, eventSync, graphLaunch dl.Call

	init             func(flags uint32) int32
	driverGetVersion func(version *int32) int32
	getErrorName     func(code int32, name *uintptr) int32
	getErrorString   func(code int32, text *uintptr) int32

	deviceGetCount     func(n *int32) int32
	deviceGet          func(dev *Device, ordinal int32) int32
	deviceGetName      func(name *byte, size int32, dev Device) int32
	deviceGetUUID      func(uuid *byte, dev Device) int32
	deviceTotalMem     func(bytes *uint64, dev Device) int32
	deviceGetAttribute func(value *int32, attribute int32, dev Device) int32
	deviceCanAccess    func(can *int32, dev, peer Device) int32

	primaryRetain   func(ctx *Context, dev Device) int32
	primaryRelease  func(dev Device) int32
	ctxSynchronize  func() int32
	ctxEnableAccess func(peer Context, flags uint32) int32

	memAlloc      func(p *Ptr, bytes uint64) int32
	memFree       func(p Ptr) int32
	memGetInfo    func(free, total *uint64) int32
	memHostAlloc  func(p *uintptr, bytes uint64, flags uint32) int32
	memFreeHost   func(p uintptr) int32
	ipcGet        func(h *ipcHandle, p Ptr) int32
	ipcOpen       func(p *Ptr, h ipcHandle, flags uint32) int32
	ipcClose      func(p Ptr) int32
	memsetD8      func(dst Ptr, value byte, n uint64, s Stream) int32
	memsetD32     func(dst Ptr, value uint32, n uint64, s Stream) int32
	streamCreate  func(s *Stream, flags uint32) int32
	streamDestroy func(s Stream) int32
	streamSync    func(s Stream) int32
	eventCreate   func(e *Event, flags uint32) int32
	eventDestroy  func(e Event) int32
	eventQuery    func(e Event) int32
	eventElapsed  func(ms *float32, from, to Event) int32

	moduleLoadData    func(m *Module, image *byte) int32
	moduleUnload      func(m Module) int32
	moduleGetFunction func(f *Function, m Module, name string) int32
	funcSetAttribute  func(f Function, attribute, value int32) int32
	launchKernel      func(f Function, gx, gy, gz, bx, by, bz, shared uint32, s Stream, params, extra unsafe.Pointer) int32
	launchKernelEx    func(c *launchConfig, f Function, params, extra unsafe.Pointer) int32

	beginCapture     func(s Stream, mode int32) int32
	endCapture       func(s Stream, g *Graph) int32
	graphInstantiate func(e *GraphExec, g Graph, flags uint64) int32
	graphDestroy     func(g Graph) int32
	graphExecDestroy func(e GraphExec) int32
}

// functions lists where each function of the driver goes.
func (a *API) functions() map[string]any {
	return map[string]any{
		"cuInit": &a.init, "cuDriverGetVersion": &a.driverGetVersion, "cuGetErrorName": &a.getErrorName, "cuGetErrorString": &a.getErrorString,
		"cuDeviceGetCount": &a.deviceGetCount, "cuDeviceGet": &a.deviceGet, "cuDeviceGetName": &a.deviceGetName, "cuDeviceGetUuid_v2": &a.deviceGetUUID,
		"cuDeviceTotalMem_v2": &a.deviceTotalMem, "cuDeviceGetAttribute": &a.deviceGetAttribute, "cuDeviceCanAccessPeer": &a.deviceCanAccess,
		"cuDevicePrimaryCtxRetain": &a.primaryRetain, "cuDevicePrimaryCtxRelease_v2": &a.primaryRelease,
		"cuCtxSetCurrent": &a.ctxSetCurrent, "cuCtxSynchronize": &a.ctxSynchronize, "cuCtxEnablePeerAccess": &a.ctxEnableAccess,
		"cuMemAlloc_v2": &a.memAlloc, "cuMemFree_v2": &a.memFree, "cuMemGetInfo_v2": &a.memGetInfo,
		"cuMemHostAlloc": &a.memHostAlloc, "cuMemFreeHost": &a.memFreeHost,
		"cuIpcGetMemHandle": &a.ipcGet, "cuIpcOpenMemHandle_v2": &a.ipcOpen, "cuIpcCloseMemHandle": &a.ipcClose,
		"cuMemcpyHtoDAsync_v2": &a.memcpyHtoD, "cuMemcpyDtoHAsync_v2": &a.memcpyDtoH, "cuMemcpyDtoDAsync_v2": &a.memcpyDtoD,
		"cuMemsetD8Async": &a.memsetD8, "cuMemsetD32Async": &a.memsetD32,
		"cuStreamCreate": &a.streamCreate, "cuStreamDestroy_v2": &a.streamDestroy, "cuStreamSynchronize": &a.streamSync, "cuStreamWaitEvent": &a.streamWait,
		"cuEventCreate": &a.eventCreate, "cuEventDestroy_v2": &a.eventDestroy, "cuEventRecord": &a.eventRecord, "cuEventSynchronize": &a.eventSync,
		"cuEventQuery": &a.eventQuery, "cuEventElapsedTime": &a.eventElapsed,
		"cuModuleLoadData": &a.moduleLoadData, "cuModuleUnload": &a.moduleUnload, "cuModuleGetFunction": &a.moduleGetFunction, "cuFuncSetAttribute": &a.funcSetAttribute,
		"cuLaunchKernel": &a.launchKernel, "cuLaunchKernelEx": &a.launchKernelEx, "cuStreamBeginCapture_v2": &a.beginCapture, "cuStreamEndCapture": &a.endCapture,
		"cuGraphInstantiateWithFlags": &a.graphInstantiate, "cuGraphLaunch": &a.graphLaunch, "cuGraphDestroy": &a.graphDestroy, "cuGraphExecDestroy": &a.graphExecDestroy,
	}
}

// Symbols are the names of all functions of the driver that this package uses.
func Symbols() []string { return slices.Sorted(maps.Keys(new(API).functions())) }

// Load opens the driver and initialises it, the first time. Without a driver the error is a [*dl.MissingError]; a driver that sees no
// card gives an [*Error] with NoDevice, or InvalidDevice for a CUDA_VISIBLE_DEVICES that names one twice.
var Load = sync.OnceValues(func() (*API, error) { return Open(soname) })

// soname is the driver's file.
const soname = "libcuda.so.1"

// Open is Load for a driver under another name, in tests.
func Open(name string) (*API, error) {
	a, err := bind(name)
	if err != nil {
		return nil, err
	}
	return a, a.check("cuInit", a.init(0))
}

func bind(name string) (*API, error) {
	lib, err := dl.Open("computing on CUDA cards", name)
	if err != nil {
		return nil, err
	}
	a := &API{lib: lib}
	if err := lib.BindAll(a.functions()); err != nil {
		return nil, err
	}
	return a, nil
}

// Find says where the driver is and which CUDA it serves (13000 is 13.0), without initialising it.
func Find() (path string, version int, err error) {
	a, err := bind(soname)
	if err != nil {
		return "", 0, err
	}
	version, err = a.DriverVersion()
	return a.lib.Path, version, err
}

// check makes an error of a code.
func (a *API) check(function string, code int32) error {
	if code == Success {
		return nil
	}
	e := &Error{Func: function, Code: code, Name: "an unknown error"}
	var name, text uintptr
	if a.getErrorName(code, &name) == Success {
		e.Name = goString(name)
	}
	if a.getErrorString(code, &text) == Success {
		e.Text = goString(text)
	}
	return e
}

// goString copies a C string.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	at := *(*unsafe.Pointer)(unsafe.Pointer(&p)) // C memory, which does not move
	n := 0
	for *(*byte)(unsafe.Add(at, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(at), n))
}
