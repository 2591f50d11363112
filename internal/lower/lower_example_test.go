package lower_test

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
	"github.com/tandem-train/tandem/internal/lower"
)

// The square of the length of w, and its gradient.
func Example() {
	graph := gorgonia.NewGraph()
	w := gorgonia.NewVector(graph, gorgonia.Float32, gorgonia.WithShape(3), gorgonia.WithName("w"))
	loss := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(w))))
	grads, err := gorgonia.Grad(loss, w)
	if err != nil {
		fmt.Println(err)
		return
	}

	slot := &ir.Slot{Region: ir.Params, Name: "w", Shape: ir.Of(3)}
	var g ir.Graph
	outs, err := lower.Lower(&g, gorgonia.Nodes{loss, grads[0]}, func(n *gorgonia.Node) (*ir.Value, error) {
		if n != w {
			return nil, fmt.Errorf("%s is unknown", n.Name())
		}
		return g.Read(slot), nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	env := ref.NewEnv([ir.NumRegions]int{ir.Params: 3})
	copy(env.At(slot), []float64{1, -2, 3})
	values, err := ref.Values(env, &g)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(values[outs[0].ID], values[outs[1].ID])
	// Output: [14] [2 -4 6]
}
