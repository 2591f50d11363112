package cudaops

import (
	"fmt"
	"slices"
)

// Host is the device number of the host, where a device may be a card or the
// host. The functions of this package that take a card refuse it.
const Host = -1

// String is the usual name of a device: cuda:1, or cpu for [Host].
func String(device int) string {
	if device == Host {
		return "cpu"
	}
	return fmt.Sprintf("cuda:%d", device)
}

// UnknownPhysical is the physical number of a card where it is not known: of a
// part of a card (MIG), and where CUDA_VISIBLE_DEVICES is set and NVML is missing.
const UnknownPhysical = -1

// Device is a visible card.
type Device struct {
	Logical  int    // number in this process, from 0
	Physical int    // number in the machine, as nvidia-smi counts
	Primary  bool   // whether it is the process's primary card, logical 0
	Name     string // such as NVIDIA H200
	UUID     string // GPU-... or MIG-...: the card's identity, whatever its number
	Memory   int64  // total, in bytes

	Simulated bool
}

// Properties are a card's properties.
type Properties struct {
	Name                string
	UUID                string
	Major, Minor        int   // compute capability; 0.0 on simulated cards
	TotalMemory         int64 // bytes
	MultiProcessorCount int   // 1 on simulated cards
	Simulated           bool
}

// IsAvailable is whether there is a card to use: DeviceCount() > 0.
func IsAvailable() bool { return DeviceCount() > 0 }

// DeviceCount is the number of visible cards. It is 0, too, when the environment
// variables make no sense or have changed, or CUDA's driver does not work;
// AvailableDevices gives that error.
func DeviceCount() int {
	s, err := use()
	if err != nil {
		return 0
	}
	return len(s.cards)
}

// AvailableDevices lists the visible cards in logical order. That there are none
// is no error: the list is empty.
func AvailableDevices() ([]Device, error) {
	s, err := use()
	if err != nil {
		return nil, err
	}
	return s.devices(), nil
}

func (s *system) devices() []Device {
	devices := make([]Device, len(s.cards))
	for i, c := range s.cards {
		p := c.info.props
		devices[i] = Device{
			Logical:   i,
			Physical:  c.info.physical,
			Primary:   i == 0,
			Name:      p.Name,
			UUID:      p.UUID,
			Memory:    p.TotalMemory,
			Simulated: p.Simulated,
		}
	}
	return devices
}

// VisibleDevices says what CUDA_VISIBLE_DEVICES made of the machine's cards, and
// which of its entries had no effect.
func VisibleDevices() (Visibility, error) {
	s, err := use()
	if err != nil {
		return Visibility{}, err
	}
	v := s.visible
	v.Cards, v.Ignored = slices.Clone(v.Cards), slices.Clone(v.Ignored) // the caller's
	return v, nil
}

// CurrentDevice is the process's current card: what SetDevice chose, else the
// primary card.
func CurrentDevice() (int, error) {
	s, err := useCards()
	if err != nil {
		return 0, err
	}
	return int(s.current.Load()), nil
}

// SetDevice makes a card the current one, for the whole process. All cards stay
// visible and numbered as they are. To keep a process off the other cards
// altogether, set CUDA_VISIBLE_DEVICES before it starts.
func SetDevice(device int) error {
	s, err := useCards()
	if err != nil {
		return err
	}
	if _, err := s.card(device); err != nil {
		return err
	}
	s.current.Store(int64(device))
	return nil
}

// DeviceName is the card's name.
func DeviceName(device int) (string, error) {
	p, err := DeviceProperties(device)
	return p.Name, err
}

// DeviceCapability is the card's compute capability, such as 9, 0.
func DeviceCapability(device int) (major, minor int, err error) {
	p, err := DeviceProperties(device)
	return p.Major, p.Minor, err
}

// DeviceProperties are the card's properties.
func DeviceProperties(device int) (Properties, error) {
	c, err := lookup(device)
	if err != nil {
		return Properties{}, err
	}
	return c.info.props, nil
}

// Synchronize returns when all work given to the card is done.
func Synchronize(device int) error {
	c, err := lookup(device)
	if err != nil {
		return err
	}
	if err := c.drv.synchronize(c.logical); err != nil {
		return fmt.Errorf("cudaops: synchronize %s: %w", String(device), err)
	}
	return nil
}
