package cudaops_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
)

// physical lists the visible cards' physical numbers, in logical order.
func physical(t *testing.T) []int {
	t.Helper()
	devices, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	var numbers []int
	for i, d := range devices {
		if d.Logical != i || d.Primary != (i == 0) {
			t.Errorf("card %d of the list: %+v", i, d)
		}
		numbers = append(numbers, d.Physical)
	}
	return numbers
}

// The example of users' guides: four cards, the fourth first.
func TestVisibleDevicesRenumber(t *testing.T) {
	cudaopstest.Setup(t, "4", "3,2,0,1")
	got := physical(t)
	if !slices.Equal(got, []int{3, 2, 0, 1}) {
		t.Fatalf("physical cards %v, want [3 2 0 1]", got)
	}
	if ids := []int{got[0], got[2], got[3]}; !slices.Equal(ids, []int{3, 0, 1}) {
		t.Errorf("device_ids 0, 2, 3 are physical %v, want [3 0 1]", ids)
	}
}

// What VisibleDevices has given is the caller's to change.
func TestVisibilityIsACopy(t *testing.T) {
	cudaopstest.Setup(t, "4", "3,2,9")
	v, err := cudaops.VisibleDevices()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(v.Cards)
	clear(v.Ignored)
	if again, err := cudaops.VisibleDevices(); err != nil || !slices.Equal(again.Cards, []int{3, 2}) || again.Ignored[0].Text != "9" {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestVisibleDevices(t *testing.T) {
	for _, tt := range []struct {
		env  map[string]string
		want []int
	}{
		{map[string]string{"TANDEM_SIM_CARDS": "3"}, []int{0, 1, 2}},
		{map[string]string{"TANDEM_SIM_CARDS": "3", "CUDA_VISIBLE_DEVICES": ""}, nil},
		{map[string]string{"TANDEM_SIM_CARDS": "3", "CUDA_VISIBLE_DEVICES": "0,2,-1,1"}, []int{0, 2}},
		{map[string]string{"TANDEM_SIM_CARDS": "3", "CUDA_VISIBLE_DEVICES": "1,1"}, nil},
		{map[string]string{"TANDEM_SIM_CARDS": ""}, nil},
		{nil, nil},
		{map[string]string{"CUDA_VISIBLE_DEVICES": "0"}, nil},
	} {
		t.Run(fmt.Sprint(tt.env), func(t *testing.T) {
			cudaopstest.SetupEnv(t, tt.env)
			if got := physical(t); !slices.Equal(got, tt.want) {
				t.Errorf("physical cards %v, want %v", got, tt.want)
			}
			if n := cudaops.DeviceCount(); n != len(tt.want) || cudaops.IsAvailable() != (n > 0) {
				t.Errorf("DeviceCount %d, IsAvailable %v", n, cudaops.IsAvailable())
			}
			v, err := cudaops.VisibleDevices()
			if err != nil || !slices.Equal(v.Cards, tt.want) {
				t.Errorf("VisibleDevices %+v, %v", v, err)
			}
		})
	}
}

// A card keeps its UUID whatever its number, and can be chosen by the beginning
// of it. The order in which CUDA numbers cards is one and the same for cards that
// are equally fast.
func TestCardsAreKnownByUUID(t *testing.T) {
	cudaopstest.Setup(t, "2GiB,1GiB,3GiB", "")
	all, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range []string{"", "FASTEST_FIRST", "PCI_BUS_ID"} {
		t.Setenv("CUDA_DEVICE_ORDER", order)
		cudaopstest.Setup(t, "2GiB,1GiB,3GiB", all[2].UUID[:12]+","+all[0].UUID)
		chosen, err := cudaops.AvailableDevices()
		if err != nil {
			t.Fatal(err)
		}
		if len(chosen) != 2 || chosen[0].UUID != all[2].UUID || chosen[1].UUID != all[0].UUID || chosen[0].Physical != 2 || chosen[0].Memory != 3<<30 {
			t.Errorf("order %q: %+v", order, chosen)
		}
	}
}

func TestSetDevice(t *testing.T) {
	cudaopstest.Setup(t, "4", "")
	if got, err := cudaops.CurrentDevice(); got != 0 || err != nil {
		t.Errorf("current device %d, %v; want the primary card", got, err)
	}
	if err := cudaops.SetDevice(1); err != nil {
		t.Fatal(err)
	}
	if got, err := cudaops.CurrentDevice(); got != 1 || err != nil {
		t.Errorf("current device %d, %v; want 1", got, err)
	}
	if n := cudaops.DeviceCount(); n != 4 {
		t.Errorf("%d cards after SetDevice, want 4 as before", n)
	}
	for _, id := range []int{4, cudaops.Host} {
		var e *cudaops.InvalidDeviceError
		if err := cudaops.SetDevice(id); !errors.As(err, &e) || e.ID != id {
			t.Errorf("SetDevice(%d): error %v", id, err)
		}
	}
	if got, _ := cudaops.CurrentDevice(); got != 1 {
		t.Errorf("a failed SetDevice chose %d", got)
	}
}

func TestProperties(t *testing.T) {
	cudaopstest.Setup(t, "2x3GiB", "1")
	p, err := cudaops.DeviceProperties(0)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	want := cudaops.Properties{
		Name: "Tandem Simulated Card", UUID: devices[0].UUID, TotalMemory: 3 << 30, MultiProcessorCount: 1, Simulated: true,
	}
	if p != want {
		t.Errorf("properties %+v, want %+v", p, want)
	}
	if name, err := cudaops.DeviceName(0); name != want.Name || err != nil {
		t.Errorf("name %q, %v", name, err)
	}
	if major, minor, err := cudaops.DeviceCapability(0); major != 0 || minor != 0 || err != nil {
		t.Errorf("capability %d.%d, %v", major, minor, err)
	}
	if err := cudaops.Synchronize(0); err != nil {
		t.Errorf("synchronize: %v", err)
	}
}

func TestSeeds(t *testing.T) {
	cudaopstest.Setup(t, "3", "")
	seeds := func() (all [3]uint64) {
		for i := range all {
			var err error
			if all[i], err = cudaops.InitialSeed(i); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	const initial = 67280421310721
	if got := seeds(); got != [3]uint64{initial, initial, initial} {
		t.Errorf("seeds %v at the start", got)
	}
	if err := errors.Join(cudaops.SetDevice(1), cudaops.ManualSeed(5)); err != nil {
		t.Fatal(err)
	}
	if got := seeds(); got != [3]uint64{initial, 5, initial} {
		t.Errorf("seeds %v after ManualSeed on card 1", got)
	}
	if err := cudaops.ManualSeedAll(6); err != nil {
		t.Fatal(err)
	}
	if got := seeds(); got != [3]uint64{6, 6, 6} {
		t.Errorf("seeds %v after ManualSeedAll", got)
	}
}

func TestString(t *testing.T) {
	for device, want := range map[int]string{cudaops.Host: "cpu", 0: "cuda:0", 12: "cuda:12"} {
		if got := cudaops.String(device); got != want {
			t.Errorf("%d: %q, want %q", device, got, want)
		}
	}
}

// cardCalls are all functions that need a card, called for the card named.
var cardCalls = map[string]func(device int) error{
	"DeviceName":           func(d int) error { _, err := cudaops.DeviceName(d); return err },
	"DeviceCapability":     func(d int) error { _, _, err := cudaops.DeviceCapability(d); return err },
	"DeviceProperties":     func(d int) error { _, err := cudaops.DeviceProperties(d); return err },
	"SetDevice":            cudaops.SetDevice,
	"Synchronize":          cudaops.Synchronize,
	"InitialSeed":          func(d int) error { _, err := cudaops.InitialSeed(d); return err },
	"MemoryAllocated":      func(d int) error { _, err := cudaops.MemoryAllocated(d); return err },
	"MaxMemoryAllocated":   func(d int) error { _, err := cudaops.MaxMemoryAllocated(d); return err },
	"MemoryReserved":       func(d int) error { _, err := cudaops.MemoryReserved(d); return err },
	"MaxMemoryReserved":    func(d int) error { _, err := cudaops.MaxMemoryReserved(d); return err },
	"ResetPeakMemoryStats": cudaops.ResetPeakMemoryStats,
	"MemGetInfo":           func(d int) error { _, _, err := cudaops.MemGetInfo(d); return err },
	"MemoryStats":          func(d int) error { _, err := cudaops.MemoryStats(d); return err },
	"MemorySummary":        func(d int) error { _, err := cudaops.MemorySummary(d); return err },
	"MemoryLimit":          func(d int) error { _, err := cudaops.MemoryLimit(d); return err },
	"MemoryLimits":         func(d int) error { _, err := cudaops.MemoryLimits(d); return err },
	"SetDeviceMemoryLimit": func(d int) error { return cudaops.SetDeviceMemoryLimit(1, d) },
	"SetPerProcessMemoryFraction": func(d int) error {
		return cudaops.SetPerProcessMemoryFraction(0.5, d)
	},
	"Alloc": func(d int) error { _, err := cudaops.Alloc(d, 1); return err },
}

// processCalls are all others that need one, with no card named.
var processCalls = map[string]func() error{
	"CurrentDevice": func() error { _, err := cudaops.CurrentDevice(); return err },
	"ManualSeed":    func() error { return cudaops.ManualSeed(1) },
	"ManualSeedAll": func() error { return cudaops.ManualSeedAll(1) },
	"EmptyCache":    func() error { return cudaops.EmptyCache() },
	"SetDeviceMemoryLimit of all": func() error {
		return cudaops.SetDeviceMemoryLimit(1)
	},
	"SetPerProcessMemoryFraction of all": func() error {
		return cudaops.SetPerProcessMemoryFraction(0.5)
	},
}

func TestInvalidDevice(t *testing.T) {
	for _, id := range []int{-1, 2, 1 << 40} {
		for name, call := range cardCalls {
			cudaopstest.Setup(t, "2", "")
			var e *cudaops.InvalidDeviceError
			if err := call(id); !errors.As(err, &e) || e.ID != id || len(e.Visible) != 2 {
				t.Errorf("%s(%d): error %v, want an InvalidDeviceError", name, id, err)
			}
			if l, err := cudaops.MemoryLimit(0); err != nil || l.Source != cudaops.LimitByCard {
				t.Errorf("%s(%d) changed the limit: %v, %v", name, id, l, err)
			}
		}
	}
}

func TestInvalidDeviceSaysWhatWorks(t *testing.T) {
	for _, tt := range []struct {
		cards, visible string
		id             int
		want           string
	}{
		{"2", "", 2, "Invalid device id 2: visible cards: cuda:0 = physical card 0, primary; cuda:1 = physical card 1 " +
			"(CUDA_VISIBLE_DEVICES is not set); use 0 to 1"},
		{"4", "0,1", 2, "Invalid device id 2: visible cards: cuda:0 = physical card 0, primary; cuda:1 = physical card 1 " +
			`(CUDA_VISIBLE_DEVICES="0,1"); use 0 to 1, or make physical card 2 visible in CUDA_VISIBLE_DEVICES`},
		{"4", "1,2", 2, "Invalid device id 2: visible cards: cuda:0 = physical card 1, primary; cuda:1 = physical card 2 " +
			`(CUDA_VISIBLE_DEVICES="1,2"); use 0 to 1, logical numbers; physical card 2 is 1 here`},
		{"4", "3,7,0", 1, "Invalid device id 1: visible cards: cuda:0 = physical card 3, primary " +
			`(CUDA_VISIBLE_DEVICES="3,7,0": entry 2: "7": there is no card 7 (there are 0 to 3); the list ends here; ` +
			`entry 3: "0": the list ended at entry 2); use 0, or make physical card 1 visible in CUDA_VISIBLE_DEVICES`},
	} {
		t.Run(tt.visible, func(t *testing.T) {
			cudaopstest.Setup(t, tt.cards, tt.visible)
			if _, err := cudaops.DeviceName(tt.id); err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %v", err, tt.want)
			}
		})
	}
}

func TestNoCard(t *testing.T) {
	for _, tt := range []struct{ cards, visible, text string }{
		{"", "", "cudaops: no card: set TANDEM_SIM_CARDS (4 or 4x2GiB, for instance) to simulate some"},
		{"2", "0,0", `cudaops: no visible card: the machine has 2, and CUDA_VISIBLE_DEVICES="0,0": entry 1: "0": a repeated card (entry 2) leaves none; ` +
			`entry 2: "0": it chooses card 0 again, as entry 1 did, and a repeated card leaves none; ` +
			"unset CUDA_VISIBLE_DEVICES or list card numbers, each once (there are 0 to 1)"},
	} {
		cudaopstest.Setup(t, tt.cards, tt.visible)
		check := func(name string, err error) {
			var e *cudaops.NoDeviceError
			if !errors.As(err, &e) || err.Error() != tt.text {
				t.Errorf("%s: error %v, want %s", name, err, tt.text)
			}
		}
		for name, call := range cardCalls {
			check(name, call(0))
		}
		for name, call := range processCalls {
			check(name, call())
		}
	}
}

func TestChangedEnvironmentIsReported(t *testing.T) {
	for _, tt := range []struct{ variable, value, text string }{
		{"CUDA_VISIBLE_DEVICES", "1", `cudaops: CUDA_VISIBLE_DEVICES was "0,1" when this process first used its cards and is "1" now, ` +
			"too late to have an effect: set it before the program starts, or put it back"},
		{"TANDEM_SIM_CARDS", "8", `TANDEM_SIM_CARDS was "2" when`},
		{"CUDA_DEVICE_LIMIT", "50%", `CUDA_DEVICE_LIMIT was unset when this process first used its cards and is "50%" now`},
	} {
		t.Run(tt.variable, func(t *testing.T) {
			cudaopstest.Setup(t, "2", "0,1")
			m, err := cudaops.Alloc(1, 4) // first use
			if err != nil {
				t.Fatal(err)
			}
			before, wasSet := os.LookupEnv(tt.variable)
			t.Setenv(tt.variable, tt.value)
			check := func(name string, err error) {
				var e *cudaops.EnvironmentChangedError
				if !errors.As(err, &e) || e.Variable != tt.variable || e.Now != tt.value || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%s: error %v, want %s", name, err, tt.text)
				}
			}
			for name, call := range cardCalls {
				check(name, call(0))
			}
			for name, call := range processCalls {
				check(name, call())
			}
			_, err = cudaops.AvailableDevices()
			check("AvailableDevices", err)
			_, err = cudaops.VisibleDevices()
			check("VisibleDevices", err)
			if n := cudaops.DeviceCount(); n != 0 {
				t.Errorf("%d cards, want none while it is unclear which", n)
			}
			if err := m.Free(); err != nil {
				t.Errorf("memory from before: %v", err)
			}

			if wasSet {
				t.Setenv(tt.variable, before)
			} else if err := os.Unsetenv(tt.variable); err != nil {
				t.Fatal(err)
			}
			if n := cudaops.DeviceCount(); n != 2 {
				t.Errorf("%d cards after it was put back, want 2", n)
			}
		})
	}
}

func TestNonsenseInTheEnvironment(t *testing.T) {
	for variable, value := range map[string]string{"TANDEM_SIM_CARDS": "many", "CUDA_DEVICE_LIMIT": "2:1GiB"} {
		cudaopstest.Setup(t, "2", "")
		good, wasSet := os.LookupEnv(variable)
		t.Setenv(variable, value)
		for name, call := range cardCalls {
			var e *cudaops.VariableError
			if err := call(0); !errors.As(err, &e) || e.Variable != variable || e.Value != value {
				t.Errorf("%s with %s=%s: error %v", name, variable, value, err)
			}
		}
		if _, err := cudaops.AvailableDevices(); err == nil || cudaops.IsAvailable() {
			t.Errorf("%s=%s: available %v, error %v", variable, value, cudaops.IsAvailable(), err)
		}
		// It is not kept: the right value works.
		t.Setenv(variable, good)
		if !wasSet {
			t.Setenv(variable, "1GiB")
		}
		if n := cudaops.DeviceCount(); n != 2 {
			t.Errorf("%d cards after %s was set right", n, variable)
		}
	}
}
