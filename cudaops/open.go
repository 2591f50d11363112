package cudaops

import (
	"github.com/tandem-train/tandem/internal/host"
	"github.com/tandem-train/tandem/internal/ir"
)

// Open returns a card as a device that runs programs. A simulated card computes on the host with that many threads (none or
// fewer: all there are), over memory of its own that obeys its caps; real cards compute by themselves.
func Open(device, threads int) (ir.Device, error) {
	c, err := lookup(device)
	if err != nil {
		return nil, err
	}
	if d, real := c.drv.(*realDriver); real {
		return openReal(c, d.visible[c.logical])
	}
	return &simulatedDevice{Device: host.Open(threads), id: device}, nil
}

// simulatedDevice is the host's executor with a card's number and memory.
type simulatedDevice struct {
	*host.Device
	id int
}

func (d *simulatedDevice) ID() int        { return d.id }
func (d *simulatedDevice) String() string { return String(d.id) }

func (d *simulatedDevice) Alloc(n int64) (ir.DeviceMemory, error) { return allocFor(d.id, n) }

// allocFor is Alloc for devices.
func allocFor(id int, n int64) (ir.DeviceMemory, error) {
	m, err := Alloc(id, n)
	if err != nil {
		return nil, err // not a nil *Memory in the interface
	}
	return m, nil
}
