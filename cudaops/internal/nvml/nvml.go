// Package nvml asks NVIDIA's management library about the cards of the machine. The library comes with the driver and is loaded at run
// time: programs with this package run everywhere, and where there is no driver, [Cards] says so.
//
// NVML ignores CUDA_VISIBLE_DEVICES and numbers cards as on the bus. Its number for a card may be another than CUDA's, so match cards
// by UUID. Asking it makes no context on a card.
//
// The library is opened once, at the first call, and stays open until the process ends. Cards may be called concurrently.
package nvml

import (
	"errors"
	"fmt"
	"sync"
)

// Unknown stands for a number that NVML does not tell.
const Unknown = -1

// Card is a card as NVML sees it now.
type Card struct {
	Name, UUID   string
	Major, Minor int    // compute capability
	BusID        string // such as 00000000:3B:00.0; "" if not known

	Memory, MemoryUsed int64 // bytes
	Utilization        int   // percent of the last moments in which something ran on the card
	Processes          []Process
	Links              []Link // to the other cards, in their order

	// Problem is what NVML failed to tell, beside what this kind of card does not support. The fields concerned are Unknown or empty.
	Problem error
}

// Process is a process that computes on a card. Its number is that of the namespace in which the driver runs.
type Process struct {
	PID   int
	Name  string // "" if not known
	Bytes int64  // of the card's memory
}

// Link is the way from one card to another.
type Link struct {
	To   int    // number of the other card
	Kind string // as nvidia-smi topo names it: NV4, PIX, PXB, PHB, NODE, SYS
}

// ErrUnavailable is the error where NVML can't be asked: no driver, or a program or system without the means to load it.
var ErrUnavailable = errors.New("NVML can't be asked")

// errUnsupported is a library's error for what a kind of card does not tell.
var errUnsupported = errors.New("not supported")

// library is what this package needs of NVML.
type library interface {
	count() (int, error)
	device(i int) (device, error)
}

// device is one card of a library. Errors are errUnsupported, or say what NVML says.
type device interface {
	name() (string, error)
	uuid() (string, error)
	capability() (major, minor int, err error)
	busID() (string, error)
	memory() (total, used int64, err error)
	utilization() (int, error)
	processes() ([]Process, error)
	link(to device) (kind string, err error)
}

var open = sync.OnceValues(openLibrary)

// Cards lists the cards of the machine. Where NVML can't be asked the error is [ErrUnavailable] and says why.
func Cards() ([]Card, error) {
	lib, err := open()
	if err != nil {
		return nil, err
	}
	return list(lib)
}

func list(lib library) ([]Card, error) {
	n, err := lib.count()
	if err != nil {
		return nil, fmt.Errorf("nvml: number of cards: %w", err)
	}
	devices := make([]device, n)
	for i := range devices {
		if devices[i], err = lib.device(i); err != nil {
			return nil, fmt.Errorf("nvml: card %d: %w", i, err)
		}
	}
	cards := make([]Card, n)
	for i := range cards {
		cards[i] = describe(i, devices)
	}
	return cards, nil
}

// describe asks all about one of the devices.
func describe(i int, devices []device) Card {
	d := devices[i]
	var c Card
	var problems []error
	told := func(what string, err error) bool {
		if err != nil && !errors.Is(err, errUnsupported) {
			problems = append(problems, fmt.Errorf("nvml: card %d: %s: %w", i, what, err))
		}
		return err == nil
	}
	var err error
	c.Name, err = d.name()
	told("name", err)
	c.UUID, err = d.uuid()
	told("UUID", err)
	c.Major, c.Minor, err = d.capability()
	told("capability", err)
	c.BusID, err = d.busID()
	told("place on the bus", err)
	if c.Memory, c.MemoryUsed, err = d.memory(); !told("memory", err) {
		c.Memory, c.MemoryUsed = Unknown, Unknown
	}
	if c.Utilization, err = d.utilization(); !told("utilization", err) {
		c.Utilization = Unknown
	}
	c.Processes, err = d.processes()
	told("processes", err)
	for j, other := range devices {
		if j == i {
			continue
		}
		kind, err := d.link(other)
		if told(fmt.Sprintf("link to card %d", j), err) {
			c.Links = append(c.Links, Link{To: j, Kind: kind})
		}
	}
	c.Problem = errors.Join(problems...)
	return c
}
