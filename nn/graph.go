package nn

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// Graph is one trace of a model over a Gorgonia graph, for one input shape. It gives parameters and buffers their nodes and
// keeps account of them. A Graph is for one goroutine, and for one trace.
type Graph struct {
	expr     *gorgonia.ExprGraph
	training bool
	samples  int            // of a training step's share; 0: dimension 0 of the output counts them
	names    map[any]string // of the modules, parameters and buffers of the bound model
	bound    bool

	params  []ParamNode
	buffers []BufferNode
	updates []BufferUpdate
	nodes   map[any]*gorgonia.Node
	taken   map[string]bool // names of variables
	streams uint64
	current string // the layer that was last at work, for errors
	err     error
}

// ParamNode is a parameter's node in a graph.
type ParamNode struct {
	Name      string
	Parameter *Parameter
	Node      *gorgonia.Node
}

// BufferNode is a buffer's node in a graph.
type BufferNode struct {
	Name   string
	Buffer *Buffer
	Node   *gorgonia.Node
}

// BufferUpdate is what a training step leaves in a buffer.
type BufferUpdate struct {
	Name   string
	Buffer *Buffer
	Value  *gorgonia.Node
}

// NewGraph returns a Graph over an empty Gorgonia graph. training says whether layers that behave differently in training and
// in evaluation, such as dropout, are in training.
func NewGraph(training bool) *Graph {
	return &Graph{
		expr: gorgonia.NewGraph(), training: training,
		names: map[any]string{}, nodes: map[any]*gorgonia.Node{}, taken: map[string]bool{},
	}
}

// Bind tells the graph whose trace it is, so that nodes and errors carry the model's names. A parameter or buffer that m does
// not show is an error from then on: it would not be trained.
func (g *Graph) Bind(m Module) error {
	s, err := survey(m)
	if err != nil {
		return err
	}
	for _, p := range s.params {
		g.names[p.Parameter] = p.Name
	}
	for _, b := range s.buffers {
		g.names[b.Buffer] = b.Name
	}
	for ptr, name := range s.modules {
		g.names[ptr] = name
	}
	g.bound = true
	return nil
}

// Expr returns the Gorgonia graph.
func (g *Graph) Expr() *gorgonia.ExprGraph { return g.expr }

// Training reports whether the trace is for training.
func (g *Graph) Training() bool { return g.training }

// Err returns the first mistake that a method without an error result has met, or nil.
func (g *Graph) Err() error { return g.err }

func (g *Graph) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// Input adds a variable of the given type and shape: the batch, or its target.
func (g *Graph) Input(name string, dtype tensor.Dtype, dims ...int) *gorgonia.Node {
	return g.variable(name, dtype, dims)
}

// variable adds a node of its own. Gorgonia takes two variables of one name and shape for the same, so the second "x" is
// called "x'".
func (g *Graph) variable(name string, dtype tensor.Dtype, dims []int) *gorgonia.Node {
	for g.taken[name] {
		name += "'"
	}
	g.taken[name] = true
	if len(dims) == 0 {
		return gorgonia.NewScalar(g.expr, dtype, gorgonia.WithName(name))
	}
	return gorgonia.NewTensor(g.expr, dtype, len(dims), gorgonia.WithShape(dims...), gorgonia.WithName(name))
}

// Param returns the node of p, the same each time: weights used twice are one node with one summed gradient.
func (g *Graph) Param(p *Parameter) *gorgonia.Node {
	if p == nil {
		g.fail(fmt.Errorf("nn: %s uses a parameter that is nil", g.layer()))
		p = NewParameter(Zeros())
	}
	if n := g.nodes[p]; n != nil {
		return n
	}
	name, known := g.names[p]
	if !known {
		name = fmt.Sprintf("param%d", len(g.params))
		if g.bound {
			g.fail(fmt.Errorf("nn: %s uses a parameter %v that is in no exported field of the model, so that it would not be trained: "+
				"export the field that holds it, or its module's, or implement Children", g.layer(), p.shape))
		}
	}
	shape := p.shape
	if err := p.check(); err != nil {
		g.fail(fmt.Errorf("nn: parameter %s: %w", name, err))
		shape = slices.Repeat(tensor.Shape{1}, len(shape)) // one that Gorgonia takes
	}
	n := g.variable(name, tensor.Float32, shape)
	g.nodes[p] = n
	g.params = append(g.params, ParamNode{name, p, n})
	return n
}

// Buffer returns the node of b: what it held when the step began.
func (g *Graph) Buffer(b *Buffer) *gorgonia.Node {
	if b == nil {
		g.fail(fmt.Errorf("nn: %s uses a buffer that is nil", g.layer()))
		b = NewBuffer(0)
	}
	if n := g.nodes[b]; n != nil {
		return n
	}
	name, known := g.names[b]
	if !known {
		name = fmt.Sprintf("buffer%d", len(g.buffers))
		if g.bound {
			g.fail(fmt.Errorf("nn: %s uses a buffer %v that is in no exported field of the model, so that it would not be kept: "+
				"export the field that holds it, or its module's, or implement Children", g.layer(), b.shape))
		}
	}
	n := g.variable(name, tensor.Float32, b.shape)
	g.nodes[b] = n
	g.buffers = append(g.buffers, BufferNode{name, b, n})
	return n
}

// Update makes v the value of b after a training step. Outside training it does nothing. A module that is applied several
// times in one trace updates its buffers several times; the last counts, built on [Graph.Latest].
func (g *Graph) Update(b *Buffer, v *gorgonia.Node) {
	if !g.training {
		return
	}
	g.Buffer(b)
	if !slices.Equal(v.Shape(), b.shape) {
		g.fail(fmt.Errorf("nn: %s updates buffer %s %v with a value %v", g.layer(), g.names[b], b.shape, v.Shape()))
		return
	}
	for i, u := range g.updates {
		if u.Buffer == b {
			g.updates[i].Value = v
			return
		}
	}
	g.updates = append(g.updates, BufferUpdate{g.names[b], b, v})
}

// Latest returns the value that b has been updated to in this trace, or its node.
func (g *Graph) Latest(b *Buffer) *gorgonia.Node {
	for _, u := range g.updates {
		if u.Buffer == b {
			return u.Value
		}
	}
	return g.Buffer(b)
}

// Params lists the parameters in the order of their first use.
func (g *Graph) Params() []ParamNode { return slices.Clone(g.params) }

// Buffers lists the buffers in the order of their first use.
func (g *Graph) Buffers() []BufferNode { return slices.Clone(g.buffers) }

// Updates lists the updates of buffers in the order in which they were first made.
func (g *Graph) Updates() []BufferUpdate { return slices.Clone(g.updates) }

// Stream returns the number of a random stream that nothing else in the trace has. The same model has the same streams in
// every trace.
func (g *Graph) Stream() uint64 {
	g.streams++
	return g.streams
}

// layer names the layer at work.
func (g *Graph) layer() string {
	if g.current == "" {
		return "the model"
	}
	return g.current
}

// title is what errors call m: its name in the bound model, and what it is.
func (g *Graph) title(m fmt.Stringer) string {
	if name := g.names[m]; name != "" {
		return fmt.Sprintf("%s (%s)", name, m)
	}
	return m.String()
}

// enter notes that layer m is at work on x, and refuses an x that it could not work on.
func (g *Graph) enter(m fmt.Stringer, x *gorgonia.Node) error {
	g.current = g.title(m)
	switch {
	case x == nil:
		return g.errorf(m, "input is nil")
	case x.Graph() != g.expr:
		return g.errorf(m, "input %s belongs to another graph", x.Name())
	}
	return nil
}

// errorf is an error of layer m.
func (g *Graph) errorf(m fmt.Stringer, format string, args ...any) error {
	return fmt.Errorf("nn: "+g.title(m)+": "+format, args...)
}

// leave gives the result of layer m its name.
func (g *Graph) leave(m fmt.Stringer, y *gorgonia.Node, err error) (*gorgonia.Node, error) {
	switch {
	case err != nil:
		return nil, fmt.Errorf("nn: %s: %w", g.title(m), err)
	case g.err != nil:
		return nil, g.err
	}
	if name := g.names[m]; name != "" {
		gorgonia.WithName(name)(y)
	}
	return y, nil
}

var errNilModule = errors.New("nn: the module is nil")

// optional is the node of p, nil where there is no such parameter.
func (g *Graph) optional(p *Parameter) *gorgonia.Node {
	if p == nil {
		return nil
	}
	return g.Param(p)
}

// dims formats a shape as [64,784].
func dims(s tensor.Shape) string { return ir.Shape(s).String() }
