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
		CUDA:       errors.New("old driver"),
	}
	var b strings.Builder
	printDevices(&b, m)
	const want = `PHYSICAL  LOGICAL      NAME       MEMORY     CAPABILITY  UUID   LINKS
0         0 (primary)  Fast Card  80.00 GiB  9.0         GPU-a  1:NV4 2:SYS
1         1            Old Card   -          7.5         GPU-b  

CUDA_VISIBLE_DEVICES is not set: all cards are visible.
card 1: memory: lost
Cards are of several kinds, and CUDA counts the fastest first. For the numbers above: CUDA_DEVICE_ORDER=PCI_BUS_ID
Programs can't use these cards: old driver
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

func TestPrintLibraries(t *testing.T) {
	var b strings.Builder
	libraries := []machine.Library{
		{Name: "NVRTC", For: "kernels", Path: "/lib/libnvrtc.so.13", Version: "13.0"},
		{Name: "cuDNN", For: "convolutions", Err: errors.New("not found")},
	}
	printLibraries(&b, libraries)
	const want = `
LIBRARY  VERSION  FILE
NVRTC    13.0     /lib/libnvrtc.so.13
cuDNN    -        -
cuDNN, for convolutions, can't be used: not found
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.Reset()
	printLibraries(&b, []machine.Library{{Name: "driver", For: "all", Err: errors.New("not found")}, libraries[1]})
	if n := strings.Count(b.String(), "can't be used"); n != 1 {
		t.Errorf("without a driver %d libraries can't be used, want the driver alone:\n%s", n, b.String())
	}
	got := deviceReport(machine.Machine{}, nil, libraries).Libraries
	if diff := cmp.Diff([]libraryJSON{{"NVRTC", "kernels", "/lib/libnvrtc.so.13", "13.0", ""}, {"cuDNN", "convolutions", "", "", "not found"}}, got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}
