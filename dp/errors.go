package dp

import (
	"fmt"
	"strings"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/internal/ir"
)

// DuplicateDeviceError is the error of naming a card twice.
type DuplicateDeviceError struct {
	IDs []int
	ID  int
}

func (e *DuplicateDeviceError) Error() string {
	return fmt.Sprintf("dp: device_ids %s names card %d twice: each card takes one replica; name each once", list(e.IDs), e.ID)
}

// PrimaryCardError is the error of a model that was placed on another card than the primary one.
type PrimaryCardError struct {
	Parameter string // the first such parameter or buffer
	Device    int    // where it is
	IDs       []int  // the first is the primary card
}

func (e *PrimaryCardError) Error() string {
	primary := e.IDs[0]
	return fmt.Sprintf("dp: module must have its parameters and buffers on device %s (device_ids[0]) but found one of them on device: %s (%s): "+
		"put card %d first in device_ids (%s), or move the module with nn.To(model, %d)",
		cudaops.String(primary), cudaops.String(e.Device), e.Parameter, e.Device, list(moveFirst(e.IDs, e.Device)), primary)
}

func moveFirst(ids []int, first int) []int {
	out := []int{first}
	for _, id := range ids {
		if id != first {
			out = append(out, id)
		}
	}
	return out
}

func list(ids []int) string {
	s := make([]string, len(ids))
	for i, id := range ids {
		s[i] = fmt.Sprint(id)
	}
	return "[" + strings.Join(s, ", ") + "]"
}

// InputError is the error of a batch that the model or the loss can't take.
type InputError struct {
	What  string // "input" or "target"
	Dtype string // of the tensor that was given; empty for none
	Shape []int
	Why   string
}

func (e *InputError) Error() string {
	if e.Dtype == "" {
		return fmt.Sprintf("dp: %s: %s", e.What, e.Why)
	}
	return fmt.Sprintf("dp: %s %s%v: %s", e.What, e.Dtype, e.Shape, e.Why)
}

func inputError(what string, t tensor.Tensor, format string, args ...any) error {
	e := &InputError{What: what, Why: fmt.Sprintf(format, args...)}
	if t != nil {
		e.Dtype, e.Shape = t.Dtype().String(), t.Shape()
	}
	return e
}

// IndexError is the error of a label or an index outside its range. It names its place in the batch.
type IndexError = ir.IndexError

// verify checks the batch that a check is about.
func verify(c ir.Check, b batch) error {
	if err := c.Verify(ir.Words[int32](b.bytes)); err != nil {
		return fmt.Errorf("dp: %s: %w", c.Slot.Name, err)
	}
	return nil
}

// ReplicaError is the failure of one replica.
type ReplicaError struct {
	Replica int // rank
	Device  int // logical card, or Host
	Err     error
}

func (e *ReplicaError) Error() string {
	return fmt.Sprintf("dp: replica %d on %s: %v", e.Replica, cudaops.String(e.Device), e.Err)
}

// Unwrap returns what went wrong on the replica.
func (e *ReplicaError) Unwrap() error { return e.Err }
