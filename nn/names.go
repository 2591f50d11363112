package nn

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// NamedParameter is a parameter and what it is called in a model. A parameter that the model holds in several places (tied
// weights) is listed under the first name; the others are its Aliases.
type NamedParameter struct {
	Name      string
	Aliases   []string
	Parameter *Parameter
}

// NamedBuffer is a buffer and what it is called in a model.
type NamedBuffer struct {
	Name    string
	Aliases []string
	Buffer  *Buffer
}

// NamedParameters lists the parameters of m, in the order of their fields, named as in PyTorch: by the path of fields to
// them, joined by dots. The exported fields of m are searched: parameters, modules, other structs and pointers to them, and
// slices, arrays and maps (by sorted key) of these, whose elements are named by index or key. The name of a field is its
// name in lower case, or what a tag says:
//
//	Attn  *Attention      `nn:"self_attn"` // self_attn.weight ...
//	Parts []nn.Module     `nn:"."`         // 0.weight ...: no name of its own, as for embedded fields
//	Old   *nn.LinearLayer `nn:"-"`         // not part of the model
//
// Children of a [Container] come after the fields. Two things of one name are an error.
func NamedParameters(m Module) ([]NamedParameter, error) {
	s, err := survey(m)
	if err != nil {
		return nil, err
	}
	return s.params, nil
}

// NamedBuffers lists the buffers of m; see [NamedParameters].
func NamedBuffers(m Module) ([]NamedBuffer, error) {
	s, err := survey(m)
	if err != nil {
		return nil, err
	}
	return s.buffers, nil
}

// surveyor walks a model.
type surveyor struct {
	params  []NamedParameter
	buffers []NamedBuffer
	modules map[any]string // the first name of each pointer
	owner   map[string]any // what has a name
	path    []any          // the pointers that lead to where the walk is
	err     error
}

func survey(m Module) (*surveyor, error) {
	v := reflect.ValueOf(m)
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errNilModule
	}
	s := &surveyor{modules: map[any]string{}, owner: map[string]any{}}
	s.walk("", v)
	if s.err != nil {
		return nil, s.err
	}
	return s, nil
}

func join(prefix, name string) string {
	switch {
	case prefix == "":
		return name
	case name == "":
		return prefix
	}
	return prefix + "." + name
}

var (
	parameterType = reflect.TypeFor[Parameter]()
	bufferType    = reflect.TypeFor[Buffer]()
)

func (s *surveyor) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("nn: "+format, args...)
	}
}

// walk visits v, which is called name.
func (s *surveyor) walk(name string, v reflect.Value) {
	if s.err != nil {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			s.walk(name, v.Elem())
		}
	case reflect.Pointer:
		if !v.IsNil() && v.Elem().Kind() == reflect.Struct {
			s.pointer(name, v)
		}
	case reflect.Struct:
		s.structure(name, v)
	case reflect.Slice, reflect.Array:
		if !holds(v.Type().Elem()) {
			return
		}
		for i := range v.Len() {
			s.walk(join(name, strconv.Itoa(i)), v.Index(i))
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String || !holds(v.Type().Elem()) {
			return
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			s.walk(join(name, k.String()), v.MapIndex(k))
		}
	}
}

// holds reports whether a value of type t may lead to a parameter.
func holds(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
		return !strings.HasPrefix(t.PkgPath(), "gorgonia.org/")
	}
	return false
}

func (s *surveyor) pointer(name string, v reflect.Value) {
	ptr := v.Interface()
	switch p := ptr.(type) {
	case *Parameter:
		if !s.claim(name, p) {
			return
		}
		for i := range s.params {
			if s.params[i].Parameter == p {
				s.params[i].Aliases = append(s.params[i].Aliases, name)
				return
			}
		}
		s.params = append(s.params, NamedParameter{Name: name, Parameter: p})
		return
	case *Buffer:
		if !s.claim(name, p) {
			return
		}
		for i := range s.buffers {
			if s.buffers[i].Buffer == p {
				s.buffers[i].Aliases = append(s.buffers[i].Aliases, name)
				return
			}
		}
		s.buffers = append(s.buffers, NamedBuffer{Name: name, Buffer: p})
		return
	}
	if slices.Contains(s.path, ptr) {
		return // a module that knows its owner
	}
	if _, seen := s.modules[ptr]; !seen {
		s.modules[ptr] = name
	}
	s.path = append(s.path, ptr)
	s.structure(name, v.Elem())
	if c, ok := ptr.(Container); ok {
		for _, child := range c.Children() {
			s.walk(join(name, child.Name), reflect.ValueOf(child.Module))
		}
	}
	s.path = s.path[:len(s.path)-1]
}

// claim gives p the name, and reports whether it is new: a second way to the same thing by the same name is none.
func (s *surveyor) claim(name string, p any) bool {
	old, taken := s.owner[name]
	if taken && old != p {
		s.fail("two parameters or buffers are called %q: name one of them with a tag `nn:\"...\"`", name)
	}
	s.owner[name] = p
	return !taken
}

func (s *surveyor) structure(name string, v reflect.Value) {
	t := v.Type()
	if !holds(t) {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("nn")
		// The exported fields of an embedded struct are fields of this one even if its type is not exported.
		visible := f.IsExported() || f.Anonymous && f.Type.Kind() == reflect.Struct
		if tag == "-" || !visible || !holds(f.Type) {
			continue
		}
		field := strings.ToLower(f.Name)
		switch {
		case tag == "." || f.Anonymous && !tagged:
			field = ""
		case tagged:
			field = tag
		}
		if f.Type == parameterType || f.Type == bufferType {
			s.fail("%s is a %s by value: make it a pointer, so that a graph and the model see the same one", join(name, field), f.Type)
			return
		}
		s.walk(join(name, field), v.Field(i))
	}
}
