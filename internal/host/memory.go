package host

import (
	"fmt"
	"unsafe"

	"github.com/tandem-train/tandem/internal/ir"
)

// memory is the regions of one program, as numbers.
type memory struct {
	f [ir.NumRegions][]float32
	i [ir.NumRegions][]int32
}

func newMemory(p *ir.Program, mem [ir.NumRegions][]byte) (*memory, error) {
	var m memory
	for r := range ir.NumRegions {
		n := p.Size[r]
		if n == 0 {
			continue
		}
		b := mem[r]
		if int64(len(b)) < p.Bytes(r) {
			return nil, fmt.Errorf("region %s has %d bytes, the program needs %d", r, len(b), p.Bytes(r))
		}
		at := unsafe.Pointer(unsafe.SliceData(b))
		if uintptr(at)%4 != 0 {
			return nil, fmt.Errorf("region %s lies at %p, which is no multiple of 4", r, at)
		}
		m.f[r] = unsafe.Slice((*float32)(at), n)
		m.i[r] = unsafe.Slice((*int32)(at), n)
	}
	return &m, nil
}

// extent is how many elements an operand reaches over.
func extent(o ir.Operand) int {
	n := 1
	for d, e := range o.Shape {
		if e == 0 {
			return 0
		}
		n += (e - 1) * o.Strides[d]
	}
	return n
}

// part is the elements that o reaches over, from its first one on.
func part[T any](regions *[ir.NumRegions][]T, o ir.Operand) ([]T, error) {
	if o.Region >= ir.NumRegions || len(o.Shape) != len(o.Strides) {
		return nil, fmt.Errorf("operand %v is malformed", o)
	}
	n := extent(o)
	if all := regions[o.Region]; o.Offset < 0 || n < 0 || o.Offset+n > len(all) {
		return nil, fmt.Errorf("operand %v ends at %d, past the %d elements of %s", o, o.Offset+n, len(all), o.Region)
	}
	return regions[o.Region][o.Offset : o.Offset+n : o.Offset+n], nil
}

// floats is o's memory as float32.
func (m *memory) floats(o ir.Operand) ([]float32, error) {
	if o.DType != ir.F32 {
		return nil, fmt.Errorf("operand %v is not f32", o)
	}
	return part(&m.f, o)
}

// ints is o's memory as int32.
func (m *memory) ints(o ir.Operand) ([]int32, error) {
	if o.DType != ir.I32 {
		return nil, fmt.Errorf("operand %v is not i32", o)
	}
	return part(&m.i, o)
}

// bits is o's memory for steps that only move elements, whatever they are: 32 bits in the guise of a float32.
func (m *memory) bits(o ir.Operand) ([]float32, error) { return part(&m.f, o) }

// contiguous is the memory of a row-major f32 operand.
func (m *memory) contiguous(o ir.Operand) ([]float32, error) {
	if !o.Contiguous() {
		return nil, notContiguous(o)
	}
	return m.floats(o)
}

// contiguousInts is the memory of a row-major i32 operand.
func (m *memory) contiguousInts(o ir.Operand) ([]int32, error) {
	if !o.Contiguous() {
		return nil, notContiguous(o)
	}
	return m.ints(o)
}

// contiguousBits is the memory of a row-major operand of any type; see bits.
func (m *memory) contiguousBits(o ir.Operand) ([]float32, error) {
	if !o.Contiguous() {
		return nil, notContiguous(o)
	}
	return m.bits(o)
}

// all is the memory of several row-major f32 operands.
func (m *memory) all(ops ...ir.Operand) ([][]float32, error) {
	out := make([][]float32, len(ops))
	for i, o := range ops {
		var err error
		if out[i], err = m.contiguous(o); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func notContiguous(o ir.Operand) error { return fmt.Errorf("operand %v is not contiguous", o) }
