package ref_test

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// A step of gradient descent, as package ir would compile it.
func Example() {
	w := &ir.Slot{Region: ir.Params, Name: "w", Shape: ir.Of(2)}
	dw := &ir.Slot{Region: ir.Grads, Name: "w", Shape: ir.Of(2)}

	var g ir.Graph
	g.Store(w, g.Minus(g.Read(w), g.Scale(g.Read(dw), 0.5)))

	e := ref.NewEnv([ir.NumRegions]int{ir.Params: 2, ir.Grads: 2})
	copy(e.At(w), []float64{1, 2})
	copy(e.At(dw), []float64{4, -4})
	if err := ref.Eval(e, ir.Part{Graph: &g}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(e.At(w))
	// Output: [-1 4]
}
