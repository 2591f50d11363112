// Package nvmlite asks NVIDIA's management library what a process that computes must know of its cards, without cgo: their UUIDs in the
// order of the bus, their memory, and who uses it. What tools want besides, such as the links between cards, package nvml tells, which is
// built with cgo.
//
// [Load] opens the library once for the process; [API.Cards] lists the cards. NVML ignores CUDA_VISIBLE_DEVICES, and asking it makes no
// context on a card. Everything may be called concurrently. A failed call gives an [*Error], a missing library a [*dl.MissingError].
package nvmlite

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/tandem-train/tandem/cudaops/internal/dl"
)

// Error is a failed call.
type Error struct {
	Func string // of the library
	Code int32
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: error %d: %s", e.Func, e.Code, e.Text) }

// Codes of the library, and the sizes of its texts.
const (
	success          = 0
	notSupported     = 3
	noPermission     = 4
	notFound         = 6
	insufficientSize = 7
	textBytes        = 256
)

// Unknown stands for a number that NVML does not tell.
const Unknown = -1

// Structures of the library.
type (
	handle     uintptr
	memoryInfo struct{ total, _, used uint64 } // the one between is free
	usage      struct{ card, _ uint32 }        // of the memory's bus
	// processInfo has Unknown bytes where all of their bits are set. Its end is about parts of cards.
	processInfo struct {
		pid   uint32
		bytes uint64
		_     [2]uint32
	}
	// busInfo begins with an older form of busID, and its parts as numbers.
	busInfo struct {
		_     [16]byte
		_     [5]uint32
		busID [32]byte
	}
)

// API is the library.
type API struct {
	init        func() int32
	errorString func(code int32) string
	count       func(n *uint32) int32
	byIndex     func(i uint32, h *handle) int32
	uuid        func(h handle, text *byte, size uint32) int32
	name        func(h handle, text *byte, size uint32) int32
	capability  func(h handle, major, minor *int32) int32
	bus         func(h handle, info *busInfo) int32
	memory      func(h handle, info *memoryInfo) int32
	utilization func(h handle, u *usage) int32
	processes   func(h handle, n *uint32, infos *processInfo) int32
	processName func(pid uint32, text *byte, size uint32) int32
}

// Load opens the library and initialises it, the first time.
var Load = sync.OnceValues(load)

func load() (*API, error) {
	lib, err := dl.Open("the numbers of cards and what uses their memory", "libnvidia-ml.so.1")
	if err != nil {
		return nil, err
	}
	a := new(API)
	err = lib.BindAll(map[string]any{
		"nvmlInit_v2": &a.init, "nvmlErrorString": &a.errorString,
		"nvmlDeviceGetCount_v2": &a.count, "nvmlDeviceGetHandleByIndex_v2": &a.byIndex,
		"nvmlDeviceGetUUID": &a.uuid, "nvmlDeviceGetName": &a.name, "nvmlDeviceGetCudaComputeCapability": &a.capability,
		"nvmlDeviceGetPciInfo_v3": &a.bus, "nvmlDeviceGetMemoryInfo": &a.memory, "nvmlDeviceGetUtilizationRates": &a.utilization,
		"nvmlDeviceGetComputeRunningProcesses_v3": &a.processes, "nvmlSystemGetProcessName": &a.processName,
	})
	if err != nil {
		return nil, err
	}
	return a, a.check("nvmlInit_v2", a.init())
}

// check makes an error of a code.
func (a *API) check(function string, code int32) error {
	if code == success {
		return nil
	}
	return &Error{function, code, a.errorString(code)}
}

// Unsupported reports whether an error says only that this kind of card does not tell.
func Unsupported(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == notSupported
}

// Card is a card of the machine.
type Card struct {
	api  *API
	h    handle
	UUID string
}

// Cards lists the cards of the machine in the order of the bus, as nvidia-smi does.
func (a *API) Cards() ([]Card, error) {
	var n uint32
	if err := a.check("nvmlDeviceGetCount_v2", a.count(&n)); err != nil {
		return nil, err
	}
	cards := make([]Card, n)
	for i := range cards {
		c := &cards[i]
		c.api = a
		if err := a.check("nvmlDeviceGetHandleByIndex_v2", a.byIndex(uint32(i), &c.h)); err != nil {
			return nil, fmt.Errorf("card %d: %w", i, err)
		}
		var err error
		if c.UUID, err = c.text("nvmlDeviceGetUUID", a.uuid); err != nil {
			return nil, fmt.Errorf("card %d: %w", i, err)
		}
	}
	return cards, nil
}

func (c Card) text(function string, get func(handle, *byte, uint32) int32) (string, error) {
	b := make([]byte, textBytes)
	err := c.api.check(function, get(c.h, &b[0], textBytes))
	return cString(b), err
}

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// Name is the card's name.
func (c Card) Name() (string, error) { return c.text("nvmlDeviceGetName", c.api.name) }

// Capability is its compute capability.
func (c Card) Capability() (major, minor int, err error) {
	var a, b int32
	err = c.api.check("nvmlDeviceGetCudaComputeCapability", c.api.capability(c.h, &a, &b))
	return int(a), int(b), err
}

// BusID is its place on the bus, such as 00000000:3B:00.0.
func (c Card) BusID() (string, error) {
	info := new(busInfo)
	err := c.api.check("nvmlDeviceGetPciInfo_v3", c.api.bus(c.h, info))
	return cString(info.busID[:]), err
}

// Memory is its memory in bytes, and what all processes and the driver use of it.
func (c Card) Memory() (total, used int64, err error) {
	info := new(memoryInfo)
	err = c.api.check("nvmlDeviceGetMemoryInfo", c.api.memory(c.h, info))
	return int64(info.total), int64(info.used), err
}

// Utilization is the percentage of the last moments in which something ran on the card.
func (c Card) Utilization() (int, error) {
	u := new(usage)
	err := c.api.check("nvmlDeviceGetUtilizationRates", c.api.utilization(c.h, u))
	return int(u.card), err
}

// Process is a process that computes on a card.
type Process struct {
	PID   int   // in the namespace in which the driver runs
	Bytes int64 // of the card's memory, or Unknown
}

// Processes lists the processes that compute on the card.
func (c Card) Processes() ([]Process, error) {
	// Processes come and go: a list that was too short is asked for again.
	for room := uint32(16); ; room *= 2 {
		infos, n := make([]processInfo, room), room
		code := c.api.processes(c.h, &n, unsafe.SliceData(infos))
		if code == insufficientSize && room < 1<<16 {
			continue
		}
		if err := c.api.check("nvmlDeviceGetComputeRunningProcesses_v3", code); err != nil {
			return nil, err
		}
		processes := make([]Process, n)
		for i, info := range infos[:n] {
			processes[i] = Process{PID: int(info.pid), Bytes: int64(info.bytes)}
		}
		return processes, nil
	}
}

// ProcessName is the name of a process's program; "" where the process has ended or is not ours to know.
func (a *API) ProcessName(pid int) (string, error) {
	b := make([]byte, textBytes)
	switch code := a.processName(uint32(pid), &b[0], textBytes); code {
	case notFound, noPermission, notSupported:
		return "", nil
	default:
		return cString(b), a.check("nvmlSystemGetProcessName", code)
	}
}
