package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/cudaops/internal/nvml"
)

// unasked is an NVML that must not be asked.
func unasked(t *testing.T) func() ([]nvml.Card, error) {
	return func() ([]nvml.Card, error) {
		t.Error("NVML was asked for simulated cards")
		return nil, nil
	}
}

// logicals are the logical numbers by physical one.
func logicals(m Machine) (numbers []int) {
	for _, c := range m.Cards {
		numbers = append(numbers, c.Logical)
	}
	return numbers
}

func TestSimulatedCards(t *testing.T) {
	cudaopstest.Setup(t, "3x2GiB,1GiB", "3,2,0,1")
	m, err := inspect(unasked(t), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{2, 3, 1, 0}, logicals(m)); diff != "" {
		t.Errorf("logical numbers (-want +got):\n%s", diff)
	}
	visible, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range visible {
		c := m.Cards[d.Physical]
		if c.Logical != d.Logical || c.Primary() != d.Primary || c.Properties.UUID != d.UUID || c.Properties.TotalMemory != d.Memory || !c.Properties.Simulated {
			t.Errorf("card %+v is %+v in package cudaops", c, d)
		}
	}
}

func TestSimulatedCardsThatAreNotVisible(t *testing.T) {
	cudaopstest.Setup(t, "4", "2,7,1")
	m, err := inspect(unasked(t), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{-1, -1, 0, -1}, logicals(m)); diff != "" {
		t.Errorf("logical numbers (-want +got):\n%s", diff)
	}
	if n := len(m.Visibility.Ignored); n != 2 {
		t.Errorf("%d ignored entries, want 2: %v", n, m.Visibility)
	}
}

func TestCardsOfNVML(t *testing.T) {
	cudaopstest.Setup(t, "", "GPU-b")
	sys := t.TempDir()
	for bus, text := range map[string]string{"0000:3b:00.0": "1\n", "0001:af:00.0": "-1\n"} {
		dir := filepath.Join(sys, "bus/pci/devices", bus)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "numa_node"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lost := errors.New("lost")
	m, err := inspect(func() ([]nvml.Card, error) {
		return []nvml.Card{
			{Name: "A", UUID: "GPU-aa", Major: 9, BusID: "00000000:3B:00.0", Memory: 80, MemoryUsed: 5, Utilization: 40,
				Processes: []nvml.Process{{PID: 7, Name: "train", Bytes: 4}}, Links: []nvml.Link{{To: 1, Kind: "NV18"}}},
			{Name: "B", UUID: "GPU-bb", Major: 8, Minor: 6, BusID: "00000001:AF:00.0", Memory: 80, MemoryUsed: nvml.Unknown, Utilization: nvml.Unknown, Problem: lost},
		}, nil
	}, sys)
	if err != nil {
		t.Fatal(err)
	}
	want := []Card{
		{Physical: 0, Logical: -1, Properties: cudaops.Properties{Name: "A", UUID: "GPU-aa", Major: 9, TotalMemory: 80}, Node: 1, MemoryUsed: 5, Utilization: 40,
			Processes: []cudaops.ProcessMemory{{PID: 7, Name: "train", Bytes: 4}}, Links: []Link{{To: 1, Kind: "NV18"}}},
		{Physical: 1, Logical: 0, Properties: cudaops.Properties{Name: "B", UUID: "GPU-bb", Major: 8, Minor: 6, TotalMemory: 80},
			Node: Unknown, MemoryUsed: Unknown, Utilization: Unknown, Problem: lost},
	}
	sameError := cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })
	if diff := cmp.Diff(want, m.Cards, sameError); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOrderOfSeveralKinds(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	for _, tt := range []struct {
		order string
		names []string
		want  bool
	}{
		{"", []string{"A", "A"}, false},
		{"", []string{"A", "A", "B"}, true},
		{"FASTEST_FIRST", []string{"A", "B"}, true},
		{"PCI_BUS_ID", []string{"A", "B"}, false},
	} {
		t.Setenv("CUDA_DEVICE_ORDER", tt.order)
		m, err := inspect(func() (cards []nvml.Card, err error) {
			for _, name := range tt.names {
				cards = append(cards, nvml.Card{Name: name, UUID: "GPU-" + name})
			}
			return cards, nil
		}, "")
		if err != nil || m.Ambiguous != tt.want {
			t.Errorf("%q, cards %v: ambiguous %v, %v; want %v", tt.order, tt.names, m.Ambiguous, err, tt.want)
		}
	}
}

// TestNoCards: that there is no NVML is no error, but it is told.
func TestNoCards(t *testing.T) {
	cudaopstest.Setup(t, "", "0")
	none := fmt.Errorf("%w: no driver", nvml.ErrUnavailable)
	m, err := inspect(func() ([]nvml.Card, error) { return nil, none }, "")
	if err != nil || len(m.Cards) != 0 || !errors.Is(m.NVML, none) || len(m.Visibility.Ignored) != 1 {
		t.Errorf("%+v, %v; want no card, and why", m, err)
	}
}

func TestVariableWithoutMeaning(t *testing.T) {
	cudaopstest.Setup(t, "many", "")
	var e *cudaops.VariableError
	if _, err := Inspect(); !errors.As(err, &e) || e.Variable != "TANDEM_SIM_CARDS" {
		t.Errorf("error %v, want one of TANDEM_SIM_CARDS", err)
	}
}

func TestNode(t *testing.T) {
	for _, bus := range []string{"", "x", "00000000:3B:00.0", "zz:../../.."} {
		if n := node(bus, t.TempDir()); n != Unknown {
			t.Errorf("%q: node %d of a tree without it", bus, n)
		}
	}
}

// Cards that CUDA_VISIBLE_DEVICES leaves out are listed, too.
func ExampleInspect() {
	os.Setenv("TANDEM_SIM_CARDS", "4x2GiB")
	os.Setenv("CUDA_VISIBLE_DEVICES", "3,1")
	defer os.Unsetenv("TANDEM_SIM_CARDS")
	defer os.Unsetenv("CUDA_VISIBLE_DEVICES")
	m, err := Inspect()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range m.Cards {
		fmt.Printf("physical %d: logical %d\n", c.Physical, c.Logical)
	}
	// Output:
	// physical 0: logical -1
	// physical 1: logical 1
	// physical 2: logical -1
	// physical 3: logical 0
}
