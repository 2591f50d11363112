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
