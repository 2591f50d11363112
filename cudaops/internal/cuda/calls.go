package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// DriverVersion is the newest CUDA that the driver serves, such as 13000 for 13.0.
func (a *API) DriverVersion() (int, error) {
	var v int32
	err := a.check("cuDriverGetVersion", a.driverGetVersion(&v))
	return int(v), err
}

// DeviceCount is the number of visible cards.
func (a *API) DeviceCount() (int, error) {
	var n int32
	err := a.check("cuDeviceGetCount", a.deviceGetCount(&n))
	return int(n), err
}

// DeviceGet gives the card with a logical number.
func (a *API) DeviceGet(ordinal int) (Device, error) {
	var d Device
	err := a.check("cuDeviceGet", a.deviceGet(&d, int32(ordinal)))
	return d, err
}

// DeviceName is the card's name.
func (a *API) DeviceName(d Device) (string, error) {
	name := make([]byte, nameBytes)
	if err := a.check("cuDeviceGetName", a.deviceGetName(&name[0], nameBytes, d)); err != nil {
		return "", err
	}
	for i, b := range name {
		if b == 0 {
			return string(name[:i]), nil
		}
	}
	return string(name), nil
}

// DeviceUUID is the card's UUID as nvidia-smi writes it.
func (a *API) DeviceUUID(d Device) (string, error) {
	u := make([]byte, uuidBytes)
	err := a.check("cuDeviceGetUuid_v2", a.deviceGetUUID(&u[0], d))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), err
}

// DeviceTotalMem is the card's memory in bytes.
func (a *API) DeviceTotalMem(d Device) (int64, error) {
	var n uint64
	err := a.check("cuDeviceTotalMem_v2", a.deviceTotalMem(&n, d))
	return int64(n), err
}

// DeviceAttribute is one of the card's attributes.
func (a *API) DeviceAttribute(attribute int32, d Device) (int, error) {
	var v int32
	err := a.check("cuDeviceGetAttribute", a.deviceGetAttribute(&v, attribute, d))
	return int(v), err
}

// DeviceCanAccessPeer reports whether one card can read and write another's memory.
func (a *API) DeviceCanAccessPeer(d, peer Device) (bool, error) {
	var can int32
	err := a.check("cuDeviceCanAccessPeer", a.deviceCanAccess(&can, d, peer))
	return can != 0, err
}

// PrimaryCtxRetain gives the card's primary context, which it makes if need be.
func (a *API) PrimaryCtxRetain(d Device) (Context, error) {
	var c Context
	err := a.check("cuDevicePrimaryCtxRetain", a.primaryRetain(&c, d))
	return c, err
}

// PrimaryCtxRelease gives it back.
func (a *API) PrimaryCtxRelease(d Device) error {
	return a.check("cuDevicePrimaryCtxRelease_v2", a.primaryRelease(d))
}

// CtxSetCurrent makes a context current on this thread.
func (a *API) CtxSetCurrent(c Context) error {
	return a.check("cuCtxSetCurrent", a.ctxSetCurrent.Do(uintptr(c)))
}

// CtxSynchronize waits for all work of the current context.
func (a *API) CtxSynchronize() error { return a.check("cuCtxSynchronize", a.ctxSynchronize()) }

// CtxEnablePeerAccess lets the current context use a peer's memory.
func (a *API) CtxEnablePeerAccess(peer Context) error {
	return a.check("cuCtxEnablePeerAccess", a.ctxEnableAccess(peer, 0))
}

// MemAlloc takes bytes of the current card's memory.
func (a *API) MemAlloc(bytes int64) (Ptr, error) {
	var p Ptr
	err := a.check("cuMemAlloc_v2", a.memAlloc(&p, uint64(bytes)))
	return p, err
}

// MemFree gives them back.
func (a *API) MemFree(p Ptr) error { return a.check("cuMemFree_v2", a.memFree(p)) }

// MemGetInfo is the current card's free and total memory, for all processes.
func (a *API) MemGetInfo() (free, total int64, err error) {
	var f, t uint64
	err = a.check("cuMemGetInfo_v2", a.memGetInfo(&f, &t))
	return int64(f), int64(t), err
}

// Pinned is host memory that cards reach by themselves. It is not Go's.
type Pinned struct {
	addr uintptr
	size int
}

// MemHostAlloc takes pinned host memory.
func (a *API) MemHostAlloc(bytes int) (Pinned, error) {
	const portable = 1
	p := Pinned{size: bytes}
	err := a.check("cuMemHostAlloc", a.memHostAlloc(&p.addr, uint64(bytes), portable))
	return p, err
}

// MemFreeHost gives it back.
func (a *API) MemFreeHost(p Pinned) error { return a.check("cuMemFreeHost", a.memFreeHost(p.addr)) }

// Bytes is the memory itself.
func (p Pinned) Bytes() []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p.addr))), p.size)
}

// Ptr is the memory as kernels know it, on all cards: addresses are one for host and cards.
func (p Pinned) Ptr() Ptr { return Ptr(p.addr) }

// IPCGetMemHandle is how other processes open memory that [API.MemAlloc] gave.
func (a *API) IPCGetMemHandle(p Ptr) (IPCHandle, error) {
	var h ipcHandle
	err := a.check("cuIpcGetMemHandle", a.ipcGet(&h, p))
	return h.bytes, err
}

// IPCOpenMemHandle makes memory of another process, on any card, reachable from the current context, as long as that process has it.
func (a *API) IPCOpenMemHandle(h IPCHandle) (Ptr, error) {
	const lazyEnablePeerAccess = 1
	var p Ptr
	err := a.check("cuIpcOpenMemHandle_v2", a.ipcOpen(&p, ipcHandle{h}, lazyEnablePeerAccess))
	return p, err
}

// IPCCloseMemHandle ends that.
func (a *API) IPCCloseMemHandle(p Ptr) error {
	return a.check("cuIpcCloseMemHandle", a.ipcClose(p))
}

// MemcpyHtoD copies n bytes of pinned memory, from off, to the card, in the order of the stream. The memory must stay as it is until then.
func (a *API) MemcpyHtoD(dst Ptr, src Pinned, off, n int, s Stream) error {
	return a.check("cuMemcpyHtoDAsync_v2", a.memcpyHtoD.Do(uintptr(dst), src.addr+uintptr(off), uintptr(n), uintptr(s)))
}

// MemcpyDtoH copies n bytes of the card to pinned memory, from off, in the order of the stream.
func (a *API) MemcpyDtoH(dst Pinned, off int, src Ptr, n int, s Stream) error {
	return a.check("cuMemcpyDtoHAsync_v2", a.memcpyDtoH.Do(dst.addr+uintptr(off), uintptr(src), uintptr(n), uintptr(s)))
}

// MemcpyDtoD copies within the card, or between cards that can access each other.
func (a *API) MemcpyDtoD(dst, src Ptr, n int, s Stream) error {
	return a.check("cuMemcpyDtoDAsync_v2", a.memcpyDtoD.Do(uintptr(dst), uintptr(src), uintptr(n), uintptr(s)))
}

// MemsetD8 fills n bytes.
func (a *API) MemsetD8(dst Ptr, value byte, n int, s Stream) error {
	return a.check("cuMemsetD8Async", a.memsetD8(dst, value, uint64(n), s))
}

// MemsetD32 fills n words.
func (a *API) MemsetD32(dst Ptr, value uint32, n int, s Stream) error {
	return a.check("cuMemsetD32Async", a.memsetD32(dst, value, uint64(n), s))
}

// StreamCreate makes a stream that does not wait for the default one.
func (a *API) StreamCreate() (Stream, error) {
	var s Stream
	err := a.check("cuStreamCreate", a.streamCreate(&s, StreamNonBlocking))
	return s, err
}

// StreamDestroy ends a stream, after its work.
func (a *API) StreamDestroy(s Stream) error {
	return a.check("cuStreamDestroy_v2", a.streamDestroy(s))
}

// StreamSynchronize waits for a stream's work.
func (a *API) StreamSynchronize(s Stream) error {
	return a.check("cuStreamSynchronize", a.streamSync(s))
}

// StreamWaitEvent lets a stream wait for an event.
func (a *API) StreamWaitEvent(s Stream, e Event) error {
	return a.check("cuStreamWaitEvent", a.streamWait.Do(uintptr(s), uintptr(e), 0))
}

// EventCreate makes an event; timing is what EventElapsed needs.
func (a *API) EventCreate(timing bool) (Event, error) {
	flags := uint32(EventDisableTiming)
	if timing {
		flags = 0
	}
	var e Event
	err := a.check("cuEventCreate", a.eventCreate(&e, flags))
	return e, err
}

// EventDestroy ends an event.
func (a *API) EventDestroy(e Event) error { return a.check("cuEventDestroy_v2", a.eventDestroy(e)) }

// EventRecord marks a place in a stream.
func (a *API) EventRecord(e Event, s Stream) error {
	return a.check("cuEventRecord", a.eventRecord.Do(uintptr(e), uintptr(s)))
}

// EventSynchronize waits until the stream has come there.
func (a *API) EventSynchronize(e Event) error {
	return a.check("cuEventSynchronize", a.eventSync.Do(uintptr(e)))
}

// EventDone reports whether it has.
func (a *API) EventDone(e Event) (bool, error) {
	code := a.eventQuery(e)
	if code == NotReady {
		return false, nil
	}
	return code == Success, a.check("cuEventQuery", code)
}

// EventElapsed is the time between two events in milliseconds.
func (a *API) EventElapsed(from, to Event) (float32, error) {
	var ms float32
	err := a.check("cuEventElapsedTime", a.eventElapsed(&ms, from, to))
	return ms, err
}

// ModuleLoadData loads a kernel binary (cubin), or PTX that ends with a zero byte.
func (a *API) ModuleLoadData(image []byte) (Module, error) {
	var m Module
	err := a.check("cuModuleLoadData", a.moduleLoadData(&m, &image[0]))
	return m, err
}

// ModuleUnload unloads it.
func (a *API) ModuleUnload(m Module) error { return a.check("cuModuleUnload", a.moduleUnload(m)) }

// ModuleGetFunction finds a kernel.
func (a *API) ModuleGetFunction(m Module, name string) (Function, error) {
	var f Function
	err := a.check("cuModuleGetFunction", a.moduleGetFunction(&f, m, name))
	return f, err
}

// FuncSetAttribute sets an attribute of a kernel.
func (a *API) FuncSetAttribute(f Function, attribute int32, value int) error {
	return a.check("cuFuncSetAttribute", a.funcSetAttribute(f, attribute, int32(value)))
}

// Dim3 are the extents of a grid or a block.
type Dim3 struct{ X, Y, Z int }

// Args are a kernel's arguments, each of at most 8 bytes. They live on the heap, where C may look at them during a launch.
type Args struct {
	values []uint64
	at     []unsafe.Pointer
	config launchConfig // of the last launch
}

func (a *Args) params() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(a.at)) }

// NewArgs makes arguments from addresses (Ptr), int32, uint32, int64, uint64 and float32.
func NewArgs(args ...any) *Args {
	a := &Args{values: make([]uint64, len(args)), at: make([]unsafe.Pointer, len(args))}
	for i, v := range args {
		p := unsafe.Pointer(&a.values[i])
		a.at[i] = p
		switch v := v.(type) {
		case Ptr:
			*(*Ptr)(p) = v
		case int32:
			*(*int32)(p) = v
		case uint32:
			*(*uint32)(p) = v
		case int64:
			*(*int64)(p) = v
		case uint64:
			*(*uint64)(p) = v
		case float32:
			*(*float32)(p) = v
		default:
			panic(fmt.Sprintf("cuda: argument %d of a kernel is %T", i, v))
		}
	}
	return a
}

// LaunchKernel puts a kernel into the stream.
func (a *API) LaunchKernel(f Function, grid, block Dim3, shared int, s Stream, args *Args) error {
	return a.check("cuLaunchKernel", a.launchKernel(f, uint32(grid.X), uint32(max(grid.Y, 1)), uint32(max(grid.Z, 1)),
		uint32(block.X), uint32(max(block.Y, 1)), uint32(max(block.Z, 1)), uint32(shared), s, args.params(), nil))
}

// LaunchEarly is LaunchKernel for a kernel of Hopper or later that waits itself for what was put into the stream before it: its blocks may
// come to the card when those of the kernel before it are all there.
func (a *API) LaunchEarly(f Function, grid, block Dim3, shared int, s Stream, args *Args) error {
	args.config = launchConfig{
		grid:   [3]uint32{uint32(grid.X), uint32(max(grid.Y, 1)), uint32(max(grid.Z, 1))},
		block:  [3]uint32{uint32(block.X), uint32(max(block.Y, 1)), uint32(max(block.Z, 1))},
		shared: uint32(shared), stream: s, attributes: &early, n: 1,
	}
	return a.check("cuLaunchKernelEx", a.launchKernelEx(&args.config, f, args.params(), nil))
}

// launchConfig is a CUlaunchConfig, launchAttribute a CUlaunchAttribute.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      Stream
	attributes  *launchAttribute
	n           uint32
}
type launchAttribute struct {
	id    uint64 // 32 bits and padding
	value [8]uint64
}

// early allows programmatic stream serialization, which is attribute 6.
var early = launchAttribute{id: 6, value: [8]uint64{1}}

// Capture makes a graph of what put gives the stream, instead of doing it. Only this thread may use the stream meanwhile.
func (a *API) Capture(s Stream, put func() error) (e GraphExec, err error) {
	if err := a.check("cuStreamBeginCapture_v2", a.beginCapture(s, CaptureThreadLocal)); err != nil {
		return 0, err
	}
	failed := put()
	var g Graph
	err = errors.Join(failed, a.check("cuStreamEndCapture", a.endCapture(s, &g)))
	if err == nil {
		err = a.check("cuGraphInstantiateWithFlags", a.graphInstantiate(&e, g, 0))
	}
	if g != 0 {
		err = errors.Join(err, a.check("cuGraphDestroy", a.graphDestroy(g)))
	}
	return e, err
}

// GraphLaunch puts a graph into the stream.
func (a *API) GraphLaunch(e GraphExec, s Stream) error {
	return a.check("cuGraphLaunch", a.graphLaunch.Do(uintptr(e), uintptr(s)))
}

// GraphExecDestroy ends what Capture made.
func (a *API) GraphExecDestroy(e GraphExec) error {
	return a.check("cuGraphExecDestroy", a.graphExecDestroy(e))
}
