package cudaops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/internal/ir"
)

func TestOpenReal(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}}) {
		return
	}
	d, err := cudaops.Open(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if d.ID() != 1 || d.String() != "cuda:1" {
		t.Errorf("device %d, %v", d.ID(), d)
	}
	m, err := d.Alloc(400)
	if err != nil {
		t.Fatal(err)
	}
	p := &ir.Program{Name: "test"}
	p.Size[ir.Work] = 100
	load := func(m ir.DeviceMemory) error {
		_, err := d.Load(p, [ir.NumRegions]ir.DeviceMemory{ir.Work: m})
		return err
	}
	for name, other := range map[string]ir.DeviceMemory{"another card's": alloc(t, 0, 400), "too little": alloc(t, 1, 396)} {
		if err := load(other); err == nil || !strings.Contains(err.Error(), "region work") {
			t.Errorf("memory that is %s: error %v", name, err)
		}
	}
	if err := m.Free(); err != nil {
		t.Fatal(err)
	}
	if err := load(m); !errors.Is(err, cudaops.ErrFreed) {
		t.Errorf("freed memory: error %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := fakecuda.Count(fakecuda.Calls(t), "cuDevicePrimaryCtxRetain"); n != 2 {
		t.Errorf("%d contexts, want one a card", n)
	}
}

// TestLoadReal: a program's own memory comes from the allocator, so that it counts; where the process holds more than a cap allows, no
// program is loaded.
func TestLoadReal(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Context: 100}) {
		return
	}
	d, err := cudaops.Open(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	allocated := func() int64 {
		n, err := cudaops.MemoryAllocated(0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	p := &ir.Program{Name: "nothing"}
	e, err := d.Load(p, [ir.NumRegions]ir.DeviceMemory{})
	if err != nil {
		t.Fatal(err)
	}
	if allocated() == 0 {
		t.Error("a program's memory is not counted")
	}
	for range 3 {
		if err := e.Run(t.Context(), new(ir.Runtime)); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil || allocated() != 0 {
		t.Errorf("%d bytes after Close, %v", allocated(), err)
	}

	m := alloc(t, 0, 10*mib)
	small := alloc(t, 0, 512)
	if err := cudaops.SetDeviceMemoryLimit(105 * mib); err != nil {
		t.Fatal(err)
	}
	before := allocated()
	var full *cudaops.OutOfMemoryError
	if _, err := d.Load(p, [ir.NumRegions]ir.DeviceMemory{}); !errors.As(err, &full) || full.Overhead != 100*mib || allocated() != before {
		t.Errorf("load above the cap: error %v, %d bytes more", err, allocated()-before)
	}
	free(t, m)
	if e, err = d.Load(p, [ir.NumRegions]ir.DeviceMemory{}); err != nil {
		t.Fatal(err)
	}
	free(t, small)
	if err := errors.Join(e.Close(), d.Close()); err != nil || allocated() != 0 {
		t.Errorf("%d bytes at the end, %v", allocated(), err)
	}
}
