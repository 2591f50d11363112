package nn

import "gorgonia.org/gorgonia"

// Module is part of a model. Forward adds its computation to the graph and returns the result's node; it is called once for
// every input shape that the model meets, so it reads sizes from x.Shape() and keeps none. What it does may depend on
// g.Training(). Parameters and buffers come in through g.Param and g.Buffer.
//
// A struct of yours is a module when it has this method; its exported fields are searched for parameters and for modules
// (see [NamedParameters]). Forward may use the modules of this package and Gorgonia's functions side by side:
//
//	type Net struct{ Fc1, Fc2 *nn.LinearLayer }
//
//	func (n *Net) Forward(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
//		h, err := n.Fc1.Forward(g, x)
//		if err != nil {
//			return nil, err
//		}
//		if h, err = gorgonia.Rectify(h); err != nil {
//			return nil, err
//		}
//		return n.Fc2.Forward(g, h)
//	}
type Module interface {
	Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error)
}

// NamedModule is a module and its name within the module that holds it.
type NamedModule struct {
	Name   string
	Module Module
}

// Container is a module that holds others where exported fields don't show them. Children are searched like exported fields,
// and in addition to them.
type Container interface {
	Children() []NamedModule
}
