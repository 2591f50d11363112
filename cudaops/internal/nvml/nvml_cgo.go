//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// goNVML is the library by way of go-nvml, which is cgo.
type goNVML struct{ lib nvml.Interface }

func openLibrary() (library, error) {
	lib := nvml.New()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
		return goNVML{lib}, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: libnvidia-ml.so.1, which comes with NVIDIA's driver, is not on this machine", ErrUnavailable)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("%w: NVIDIA's driver is not loaded", ErrUnavailable)
	default:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ret)
	}
}

// check makes an error of what a call returned.
func check(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return errUnsupported
	}
	return ret
}

func (g goNVML) count() (int, error) {
	n, ret := g.lib.DeviceGetCount()
	return n, check(ret)
}

func (g goNVML) device(i int) (device, error) {
	d, ret := g.lib.DeviceGetHandleByIndex(i)
	return goDevice{g.lib, d}, check(ret)
}

type goDevice struct {
	lib nvml.Interface
	dev nvml.Device
}

func (d goDevice) name() (string, error) {
	name, ret := d.dev.GetName()
	return name, check(ret)
}

func (d goDevice) uuid() (string, error) {
	uuid, ret := d.dev.GetUUID()
	return uuid, check(ret)
}

func (d goDevice) capability() (major, minor int, err error) {
	major, minor, ret := d.dev.GetCudaComputeCapability()
	return major, minor, check(ret)
}

func (d goDevice) busID() (string, error) {
	pci, ret := d.dev.GetPciInfo()
	if err := check(ret); err != nil {
		return "", err
	}
	var id []byte
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		id = append(id, byte(c))
	}
	return string(id), nil
}

func (d goDevice) memory() (total, used int64, err error) {
	m, ret := d.dev.GetMemoryInfo()
	return int64(m.Total), int64(m.Used), check(ret)
}

func (d goDevice) utilization() (int, error) {
	u, ret := d.dev.GetUtilizationRates()
	return int(u.Gpu), check(ret)
}

func (d goDevice) processes() ([]Process, error) {
	infos, ret := d.dev.GetComputeRunningProcesses()
	if err := check(ret); err != nil {
		return nil, err
	}
	var processes []Process
	for _, info := range infos {
		p := Process{PID: int(info.Pid), Bytes: int64(info.UsedGpuMemory)} // VALUE_NOT_AVAILABLE is Unknown in 64 bits
		name, ret := d.lib.SystemGetProcessName(p.PID)
		switch err := check(ret); {
		case err == nil:
			p.Name = name
		case errors.Is(err, nvml.ERROR_NOT_FOUND), errors.Is(err, nvml.ERROR_NO_PERMISSION), errors.Is(err, errUnsupported):
			// it has ended since, or is in another namespace
		default:
			return nil, fmt.Errorf("name of process %d: %w", p.PID, err)
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// link is NV and the number of NVLinks where there are some, else how far up the machine's tree of buses the two cards meet.
func (d goDevice) link(to device) (string, error) {
	other := to.(goDevice).dev
	status, ret := d.dev.GetP2PStatus(other, nvml.P2P_CAPS_INDEX_NVLINK)
	if err := check(ret); err != nil && !errors.Is(err, errUnsupported) {
		return "", err
	}
	if ret == nvml.SUCCESS && status == nvml.P2P_STATUS_OK {
		n, err := d.nvlinks(other)
		return fmt.Sprintf("NV%d", n), err
	}
	level, ret := d.dev.GetTopologyCommonAncestor(other)
	if err := check(ret); err != nil {
		return "", err
	}
	switch level {
	case nvml.TOPOLOGY_INTERNAL:
		return "PSB", nil // two chips on one board
	case nvml.TOPOLOGY_SINGLE:
		return "PIX", nil
	case nvml.TOPOLOGY_MULTIPLE:
		return "PXB", nil
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return "PHB", nil
	case nvml.TOPOLOGY_NODE:
		return "NODE", nil
	case nvml.TOPOLOGY_SYSTEM:
		return "SYS", nil
	}
	return "", fmt.Errorf("an unknown topology level: %d", level)
}

// nvlinks is the number of active NVLinks that lead to another card, directly or by way of a switch.
func (d goDevice) nvlinks(to nvml.Device) (int, error) {
	target, ret := to.GetPciInfo()
	if err := check(ret); err != nil {
		return 0, err
	}
	n := 0
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.dev.GetNvLinkState(i)
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue // the card has no such link
		}
		kind, ret := d.dev.GetNvLinkRemoteDeviceType(i)
		if err := check(ret); err != nil {
			return 0, fmt.Errorf("NVLink %d: %w", i, err)
		}
		if kind == nvml.NVLINK_DEVICE_TYPE_GPU {
			remote, ret := d.dev.GetNvLinkRemotePciInfo(i)
			if err := check(ret); err != nil {
				return 0, fmt.Errorf("NVLink %d: %w", i, err)
			}
			if remote.Domain != target.Domain || remote.Bus != target.Bus || remote.Device != target.Device {
				continue
			}
		}
		n++
	}
	return n, nil
}
