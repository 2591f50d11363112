package lower

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// Op is a Gorgonia op that knows its own lowering.
type Op interface {
	gorgonia.Op
	// Lower writes the op on args, which have the shapes of the node's children, and returns a value of the node's shape.
	// Mistakes are reported with g.Fail.
	Lower(g *ir.Graph, args []*ir.Value) *ir.Value
}

// UnsupportedError says that a node can't be lowered.
type UnsupportedError struct {
	Op   string // the op as Gorgonia prints it, or its type
	Node string // the node's name
	Why  string // what is the matter, and what would work
}

// Error names the op, the node and the way out.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("lower: %s of node %q: %s", e.Op, e.Node, e.Why)
}

// Lower writes the computation of outs into g and returns their values, shaped as the nodes are. It calls leaf once for every
// variable that they depend on; leaf's value must have the node's shape, and be ir.I32 where the node holds integers.
func Lower(g *ir.Graph, outs gorgonia.Nodes, leaf func(*gorgonia.Node) (*ir.Value, error)) ([]*ir.Value, error) {
	if err := g.Err(); err != nil {
		return nil, fmt.Errorf("lower: the graph is already in error: %w", err)
	}
	l := &lowering{g: g, leaf: leaf, values: map[*gorgonia.Node]*ir.Value{}, masks: map[uintptr]*ir.Value{}}
	defer g.SetScope(g.SetScope(""))
	vals := make([]*ir.Value, len(outs))
	for i, n := range outs {
		if n == nil {
			return nil, fmt.Errorf("lower: output %d is nil", i)
		}
		if err := l.walk(n); err != nil {
			return nil, err
		}
		vals[i] = l.values[n]
	}
	return vals, nil
}

// lowering is the state of one Lower.
type lowering struct {
	g      *ir.Graph
	leaf   func(*gorgonia.Node) (*ir.Value, error)
	values map[*gorgonia.Node]*ir.Value
	masks  map[uintptr]*ir.Value // of dropouts, by the address of the op, which forward and backward nodes share
}

// call is one node on its way into the graph.
type call struct {
	*lowering
	n     *gorgonia.Node
	op    attrs    // what the op's fields say
	shape ir.Shape // the node's
}

// rule writes a node, given the values of what it needs.
type rule func(c *call, args []*ir.Value) (*ir.Value, error)

// step is how a node will be lowered: needs first, then rule on their values.
type step struct {
	n     *gorgonia.Node
	needs []*gorgonia.Node
	rule  rule
	next  int // the first of needs that has not been looked at
}

// walk lowers n after everything below it. Its stack is on the heap: graphs can be thousands of nodes deep.
func (l *lowering) walk(n *gorgonia.Node) error {
	var stack []*step
	push := func(n *gorgonia.Node) error {
		if l.values[n] != nil {
			return nil
		}
		s, err := l.plan(n)
		stack = append(stack, s)
		return err
	}
	if err := push(n); err != nil {
		return err
	}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		if s.next < len(s.needs) {
			s.next++
			if err := push(s.needs[s.next-1]); err != nil {
				return err
			}
			continue
		}
		stack = stack[:len(stack)-1]
		if err := l.finish(s); err != nil {
			return err
		}
	}
	return nil
}

// plan chooses the rule for n.
func (l *lowering) plan(n *gorgonia.Node) (*step, error) {
	s := &step{n: n, needs: children(n)}
	for i, c := range s.needs {
		if c.Type() == nil {
			// Gorgonia drops 1+x and 1-x when it replaces their logarithm, though others may use them.
			return nil, fmt.Errorf("lower: node %q: Gorgonia has removed its input %d from the graph, in stabilising a logarithm: "+
				"build that input anew for each use", n.Name(), i)
		}
	}
	op := n.Op()
	switch own, ok := op.(Op); {
	case op == nil:
		s.rule = func(c *call, _ []*ir.Value) (*ir.Value, error) { return c.leaf(c.n) }
	case ok:
		s.rule = func(c *call, args []*ir.Value) (*ir.Value, error) { return own.Lower(c.g, args), nil }
	default:
		kind := kindOf(op)
		if l.planConv(s, kind) {
			break
		}
		if s.rule = rules[kind]; s.rule == nil {
			return nil, unsupported(n, kind)
		}
	}
	if dtypeOf(n) == tensor.Float64 {
		what := "an input"
		if op != nil {
			what = op.String()
		}
		return nil, &UnsupportedError{Op: what, Node: n.Name(), Why: "it is float64 and models are float32: build the graph with tensor.Float32"}
	}
	return s, nil
}

// finish runs the rule of s and checks what it made against the node.
func (l *lowering) finish(s *step) error {
	c := &call{lowering: l, n: s.n, shape: ir.Shape(s.n.Shape())}
	if s.n.Op() != nil {
		c.op = attrsOf(s.n.Op())
	}
	args := make([]*ir.Value, len(s.needs))
	for i, d := range s.needs {
		args[i] = l.values[d]
	}
	name := nameOf(s.n)
	l.g.SetScope(name)
	v, err := s.rule(c, args)
	var un *UnsupportedError
	switch {
	case errors.As(err, &un):
		return err
	case err != nil:
		return fmt.Errorf("lower: node %q: %w", name, err)
	case l.g.Err() != nil:
		return fmt.Errorf("lower: node %w", l.g.Err()) // it begins with the scope
	case v == nil:
		return fmt.Errorf("lower: node %q: no value came for it", name)
	}
	if !sameButOnes(v.Shape, c.shape) {
		return fmt.Errorf("lower: node %q has shape %s and its value %s", name, c.shape, v.Shape)
	}
	l.values[s.n] = l.g.Reshape(v, c.shape...)
	return nil
}

// sameButOnes reports whether a and b differ in dimensions of extent 1 only. Gorgonia keeps or drops those as it happens: a
// scalar may be () or (1), a column (n) or (n,1).
func sameButOnes(a, b ir.Shape) bool {
	i, j := 0, 0
	for {
		for i < len(a) && a[i] == 1 {
			i++
		}
		for j < len(b) && b[j] == 1 {
			j++
		}
		if i == len(a) || j == len(b) {
			return i == len(a) && j == len(b)
		}
		if a[i] != b[j] {
			return false
		}
		i, j = i+1, j+1
	}
}

// nameOf is what people call n: its name, or, for the gradient of a variable, "grad of w".
func nameOf(n *gorgonia.Node) string {
	if of := n.DerivOf(); n.Op() != nil && len(of) > 0 && of[0].Op() == nil {
		return "grad of " + of[0].Name()
	}
	return n.Name()
}

// unsupported is the error for an op without a rule.
func unsupported(n *gorgonia.Node, kind string) error {
	why, ok := advice[kind]
	if !ok {
		why = "there is no lowering for this op: use Gorgonia's elementwise, matrix, shape and reduction functions or the layers " +
			"of package nn, or give an op of your own a Lower method"
	}
	return &UnsupportedError{Op: fmt.Sprintf("%T %s", n.Op(), n.Op()), Node: n.Name(), Why: why}
}

// failf is an UnsupportedError about this node.
func (c *call) failf(format string, args ...any) error {
	return &UnsupportedError{Op: c.n.Op().String(), Node: c.n.Name(), Why: fmt.Sprintf(format, args...)}
}
