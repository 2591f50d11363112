package lower

import (
	"fmt"
	"reflect"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Gorgonia's op types and a node's children are unexported, so this file reads them by reflection. The names of types and
// fields are those of v0.9.18; the tests use every one.

var gorgoniaPath = reflect.TypeFor[gorgonia.Node]().PkgPath()

// kindOf is the name of the op's type when it is one of Gorgonia's, else "".
func kindOf(op gorgonia.Op) string {
	t := reflect.TypeOf(op)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() != gorgoniaPath {
		return ""
	}
	return t.Name()
}

// children returns what n's op is applied to. ExprGraph.From would do, but its index of nodes is out of date as soon as a node
// has been removed, which gorgonia.Grad does.
func children(n *gorgonia.Node) []*gorgonia.Node {
	f := reflect.ValueOf(n).Elem().FieldByName("children")
	out := make([]*gorgonia.Node, f.Len())
	for i := range out {
		out[i] = (*gorgonia.Node)(f.Index(i).UnsafePointer())
	}
	return out
}

// dtypeOf is the element type of n, or the zero Dtype of a node without one.
func dtypeOf(n *gorgonia.Node) tensor.Dtype {
	switch t := n.Type().(type) {
	case tensor.Dtype:
		return t
	case gorgonia.TensorType:
		if dt, ok := t.Of.(tensor.Dtype); ok {
			return dt
		}
	}
	return tensor.Dtype{}
}

// attrs reads the fields of a struct; fields of embedded structs count as its own.
type attrs struct{ v reflect.Value }

func attrsOf(op gorgonia.Op) attrs { return attrs{reflect.Indirect(reflect.ValueOf(op))} }

func (a attrs) field(name string) reflect.Value {
	f := a.v.FieldByName(name)
	if !f.IsValid() {
		panic(fmt.Sprintf("lower: gorgonia's %s has no field %s", a.v.Type(), name))
	}
	return f
}

// in returns the fields of the struct that the interface field name holds.
func (a attrs) in(name string) attrs { return attrs{reflect.Indirect(a.field(name).Elem())} }

func (a attrs) int(name string) int       { return int(a.field(name).Int()) }
func (a attrs) byte(name string) byte     { return byte(a.field(name).Uint()) }
func (a attrs) bool(name string) bool     { return a.field(name).Bool() }
func (a attrs) float(name string) float64 { return a.field(name).Float() }
func (a attrs) pair(first, second string) [2]int {
	return [2]int{a.int(first), a.int(second)}
}

func (a attrs) ints(name string) []int {
	f := a.field(name)
	out := make([]int, f.Len())
	for i := range out {
		out[i] = int(f.Index(i).Int())
	}
	return out
}
