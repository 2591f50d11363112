package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/machine"
)

// TestDevicesOfNVML: what NVML knows of cards is shown, what it does not tell too, and that they are not used.
func TestDevicesOfNVML(t *testing.T) {
	m := machine.Machine{
		Cards: []machine.Card{
			{Physical: 0, Logical: 0, Properties: cudaops.Properties{Name: "Fast Card", UUID: "GPU-a", Major: 9, TotalMemory: 80 << 30},
				Links: []machine.Link{{To: 1, Kind: "NV4"}, {To: 2, Kind: "SYS"}}},
			{Physical: 1, Logical: 1, Properties: cudaops.Properties{Name: "Old Card", UUID: "GPU-b", Major: 7, Minor: 5, TotalMemory: machine.Unknown},
				Problem: errors.New("memory: lost")},
		},
		Visibility: cudaops.Visibility{Physical: 2, Cards: []int{0, 1}},
		Ambiguous:  true,
	}
	var b strings.Builder
	printDevices(&b, m)
	const want = `PHYSICAL  LOGICAL      NAME       MEMORY     CAPABILITY  UUID   LINKS
0         0 (primary)  Fast Card  80.00 GiB  9.0         GPU-a  1:NV4 2:SYS
1         1            Old Card   -          7.5         GPU-b  

CUDA_VISIBLE_DEVICES is not set: all cards are visible.
card 1: memory: lost
Cards are of several kinds, and CUDA counts the fastest first. For the numbers above: CUDA_DEVICE_ORDER=PCI_BUS_ID
This version of Tandem computes on simulated cards and on the host only: TANDEM_SIM_CARDS=4 simulates four.
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNoDevices(t *testing.T) {
	for _, tt := range []struct {
		why  error
		want string
	}{
		{nil, "This machine has no card.\n"},
		{errors.New("no driver"), "This machine has no card that is known: no driver.\n"},
	} {
		var b strings.Builder
		printDevices(&b, machine.Machine{NVML: tt.why})
		if want := tt.want + "To simulate four cards on the host: TANDEM_SIM_CARDS=4 tandem devices\n"; b.String() != want {
			t.Errorf("%q, want %q", b.String(), want)
		}
	}
}
