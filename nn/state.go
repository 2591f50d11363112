package nn

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"gorgonia.org/tensor"
)

// State is an ordered set of named tensors: the parameters and buffers of a model, float32. The zero State is empty and ready.
type State struct {
	// Metadata are words about the tensors, by name, which a file has beside them. It may be nil.
	Metadata map[string]string

	names   []string
	tensors map[string]*tensor.Dense
}

// Len returns the number of tensors.
func (s *State) Len() int { return len(s.names) }

// Names lists the names in order.
func (s *State) Names() []string { return slices.Clone(s.names) }

// Get returns the tensor of that name, or nil.
func (s *State) Get(name string) *tensor.Dense { return s.tensors[name] }

// Set adds a tensor at the end, or puts it in the place of the one of that name.
func (s *State) Set(name string, t *tensor.Dense) {
	if s.tensors == nil {
		s.tensors = map[string]*tensor.Dense{}
	}
	if _, ok := s.tensors[name]; !ok {
		s.names = append(s.names, name)
	}
	s.tensors[name] = t
}

// All yields names and tensors in order.
func (s *State) All() iter.Seq2[string, *tensor.Dense] {
	return func(yield func(string, *tensor.Dense) bool) {
		for _, n := range s.names {
			if !yield(n, s.tensors[n]) {
				return
			}
		}
	}
}

// StateDict copies the parameters of m and then its buffers, under the names that [NamedParameters] and [NamedBuffers] give
// them. Tied weights are there once.
func StateDict(m Module) (*State, error) {
	sv, err := survey(m)
	if err != nil {
		return nil, err
	}
	s := new(State)
	for _, p := range sv.params {
		if p.Parameter.value == nil {
			return nil, fmt.Errorf("nn: state dict: parameter %s has no value yet: call nn.Initialize or load one", p.Name)
		}
		s.Set(p.Name, dense(p.Parameter.shape, slices.Clone(p.Parameter.value)))
	}
	for _, b := range sv.buffers {
		s.Set(b.Name, dense(b.Buffer.shape, slices.Clone(b.Buffer.value)))
	}
	return s, nil
}

// dense is a tensor over x.
func dense(shape tensor.Shape, x []float32) *tensor.Dense {
	if len(shape) == 0 {
		return tensor.New(tensor.FromScalar(x[0]))
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x))
}

// Mismatch is a tensor that a model can't take.
type Mismatch struct {
	Name       string
	Have, Want tensor.Shape
	Dtype      tensor.Dtype // of what there is, where that is the reason
}

// StateError says everything in a state dict that doesn't fit a model. Nothing of it has been loaded.
type StateError struct {
	Missing    []string // the model has them, the state dict does not
	Unexpected []string // the state dict has them, the model does not
	Mismatched []Mismatch
}

// Error lists all of it.
func (e *StateError) Error() string {
	var parts []string
	if len(e.Missing) > 0 {
		parts = append(parts, "missing "+strings.Join(e.Missing, ", "))
	}
	if len(e.Unexpected) > 0 {
		parts = append(parts, "unexpected "+strings.Join(e.Unexpected, ", "))
	}
	for _, m := range e.Mismatched {
		if slices.Equal(m.Have, m.Want) {
			parts = append(parts, fmt.Sprintf("%s is of %v, which does not convert to float32", m.Name, m.Dtype))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s is %s, not %s", m.Name, dims(m.Have), dims(m.Want)))
	}
	return "nn: the state dict does not fit the model: " + strings.Join(parts, "; ")
}

// prefix is what models wrapped by torch.nn.DataParallel put before every name.
const prefix = "module."

// target is a place that a state dict's tensor goes to.
type target struct {
	name    string
	aliases []string
	shape   tensor.Shape
	set     func([]float32) error
}

// LoadStateDict copies the tensors of s into the parameters and buffers of their names. A "module." before a name is ignored unless m has the whole;
// tied weights may come under any of their names. strict means that neither may have a name that the other lacks. Shapes must
// always agree. float64 and integers are converted. What does not fit is a [*StateError], and then nothing is loaded.
func LoadStateDict(m Module, s *State, strict bool) error {
	if s == nil {
		return errors.New("nn: load: the state is nil")
	}
	sv, err := survey(m)
	if err != nil {
		return err
	}
	var targets []target
	for _, p := range sv.params {
		if err := p.Parameter.check(); err != nil {
			return fmt.Errorf("nn: load: parameter %s: %w", p.Name, err)
		}
		targets = append(targets, target{p.Name, p.Aliases, p.Parameter.shape, p.Parameter.SetData})
	}
	for _, b := range sv.buffers {
		targets = append(targets, target{b.Name, b.Aliases, b.Buffer.shape, b.Buffer.SetData})
	}
	known := map[string]bool{}
	for _, t := range targets {
		for _, name := range append([]string{t.name}, t.aliases...) {
			known[name] = true
		}
	}
	own := func(name string) string { // the model may have a module of that name
		if known[name] {
			return name
		}
		return strings.TrimPrefix(name, prefix)
	}
	given := map[string]*tensor.Dense{}
	for name, t := range s.All() {
		given[own(name)] = t
	}
	var wrong StateError
	values := make([][]float32, len(targets))
	for i, t := range targets {
		var have *tensor.Dense
		for _, name := range append([]string{t.name}, t.aliases...) {
			if have == nil {
				have = given[name]
			}
		}
		if have == nil {
			if strict {
				wrong.Missing = append(wrong.Missing, t.name)
			}
			continue
		}
		if !slices.Equal(have.Shape(), t.shape) {
			wrong.Mismatched = append(wrong.Mismatched, Mismatch{t.name, have.Shape().Clone(), t.shape.Clone(), have.Dtype()})
			continue
		}
		x, ok := floats(have)
		if !ok {
			wrong.Mismatched = append(wrong.Mismatched, Mismatch{t.name, have.Shape().Clone(), t.shape.Clone(), have.Dtype()})
		}
		values[i] = x
	}
	for name := range s.All() {
		if strict && !known[own(name)] {
			wrong.Unexpected = append(wrong.Unexpected, name)
		}
	}
	if len(wrong.Missing)+len(wrong.Unexpected)+len(wrong.Mismatched) > 0 {
		return &wrong
	}
	for i, t := range targets {
		if values[i] == nil {
			continue
		}
		if err := t.set(values[i]); err != nil {
			return fmt.Errorf("nn: load: %s: %w", t.name, err)
		}
	}
	return nil
}

// floats returns the elements of t, row-major, as float32.
func floats(t *tensor.Dense) ([]float32, bool) {
	if t.RequiresIterator() {
		t = t.Materialize().(*tensor.Dense)
	}
	switch x := t.Data().(type) {
	case []float32:
		return x, true
	case float32:
		return []float32{x}, true
	case []float64:
		return converted(x), true
	case float64:
		return []float32{float32(x)}, true
	case []int64:
		return converted(x), true
	case int64:
		return []float32{float32(x)}, true
	case []int32:
		return converted(x), true
	case int32:
		return []float32{float32(x)}, true
	case []int:
		return converted(x), true
	case int:
		return []float32{float32(x)}, true
	}
	return nil, false
}

func converted[T float64 | int64 | int32 | int](x []T) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}
