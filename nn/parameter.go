package nn

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"
)

// Host is the device of a parameter that has not been placed on a card.
const Host = -1

// Parameter is a float32 tensor that training changes. It is made with its shape and the distribution of its first value;
// the value itself comes from [Initialize], [LoadStateDict] or [Parameter.SetData].
//
// A Parameter may be read by several goroutines, and changed by one that is alone with it.
type Parameter struct {
	shape  tensor.Shape
	init   Init
	value  []float32
	device int
}

// NewParameter returns a parameter of the given shape without a value. A nil init means zeros.
func NewParameter(init Init, dims ...int) *Parameter {
	if init == nil {
		init = Zeros()
	}
	return &Parameter{shape: slices.Clone(tensor.Shape(dims)), init: init, device: Host}
}

// check reports a shape that no tensor has.
func (p *Parameter) check() error { return checkShape(p.shape) }

func checkShape(s tensor.Shape) error {
	for _, d := range s {
		if d < 1 {
			return fmt.Errorf("shape %v: every dimension must be at least 1", s)
		}
	}
	return nil
}

// Shape returns the parameter's shape.
func (p *Parameter) Shape() tensor.Shape { return p.shape.Clone() }

// Size returns the number of elements.
func (p *Parameter) Size() int { return sizeOf(p.shape) }

func sizeOf(s tensor.Shape) int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Data returns the elements, row-major, or nil before the parameter has a value. The slice is the parameter's own.
func (p *Parameter) Data() []float32 { return p.value }

// SetData copies x, row-major, into the parameter.
func (p *Parameter) SetData(x []float32) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("nn: parameter: %w", err)
	}
	if len(x) != p.Size() {
		return fmt.Errorf("nn: parameter %v: takes %d elements, not %d", p.shape, p.Size(), len(x))
	}
	if p.value == nil {
		p.value = make([]float32, len(x))
	}
	copy(p.value, x)
	return nil
}

// Device returns the logical number of the card that the parameter was placed on with [To], or [Host].
func (p *Parameter) Device() int { return p.device }

// Buffer is a float32 tensor that belongs to a model but is not trained, such as running statistics. It has a value from the
// start. The rules for goroutines are [Parameter]'s.
type Buffer struct {
	shape  tensor.Shape
	value  []float32
	device int
}

// NewBuffer returns a buffer of the given shape whose every element is x.
func NewBuffer(x float32, dims ...int) *Buffer {
	b := &Buffer{shape: slices.Clone(tensor.Shape(dims)), device: Host}
	if checkShape(b.shape) == nil {
		b.value = slices.Repeat([]float32{x}, sizeOf(b.shape))
	}
	return b
}

// Shape returns the buffer's shape.
func (b *Buffer) Shape() tensor.Shape { return b.shape.Clone() }

// Size returns the number of elements.
func (b *Buffer) Size() int { return sizeOf(b.shape) }

// Data returns the elements, row-major. The slice is the buffer's own.
func (b *Buffer) Data() []float32 { return b.value }

// SetData copies x, row-major, into the buffer.
func (b *Buffer) SetData(x []float32) error {
	if len(x) != len(b.value) {
		return fmt.Errorf("nn: buffer %v: takes %d elements, not %d", b.shape, len(b.value), len(x))
	}
	copy(b.value, x)
	return nil
}

// Device returns the logical number of the card that the buffer was placed on with [To], or [Host].
func (b *Buffer) Device() int { return b.device }

// To places the parameters and buffers of m on the card of that logical number, or on the [Host]. It is a note of where they
// belong; whoever trains the model checks it and moves the data.
func To(m Module, device int) error {
	if device < Host {
		return fmt.Errorf("nn: to: no device has the number %d: give a logical card number, or nn.Host", device)
	}
	s, err := survey(m)
	if err != nil {
		return err
	}
	for _, p := range s.params {
		p.Parameter.device = device
	}
	for _, b := range s.buffers {
		b.Buffer.device = device
	}
	return nil
}
