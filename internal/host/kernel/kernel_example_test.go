package kernel_test

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/host/kernel"
)

// A linear layer with ReLU: y = max(x w^T + b, 0), the weights [out,in] read as their transpose.
func ExampleGemm() {
	pool := kernel.NewPool(2)
	defer pool.Close()

	x := []float32{1, 2, 3, -1, -2, -3}              // [2,3]
	w := []float32{1, 0, 0, 0, 1, 1}                 // [2,3]
	bias, y := []float32{10, -4}, make([]float32, 4) // [2], [2,2]

	layer := kernel.NewGemm(pool, kernel.GemmShape{M: 2, N: 2, K: 3})
	layer.Run(kernel.RowMajor(y, 2, 2), kernel.RowMajor(x, 2, 3), kernel.RowMajor(w, 2, 3).T(), kernel.Epilogue{ColBias: bias, ReLU: true})
	fmt.Println(y)
	// Output: [11 1 9 0]
}

// Blocks of a fused elementwise chain: y = tanh(2 a + b).
func ExampleVector() {
	v := kernel.Vectors(kernel.Best())
	a, b, y := []float32{0, 1, -1}, []float32{0, -2, 2}, make([]float32, 3)
	v.Fma.VSV(y, a, b, 2)
	v.Tanh(y, y)
	fmt.Println(y)
	// Output: [0 0 0]
}

// Adaptive pooling of one 3 x 3 plane to 2 x 2: the windows overlap.
func ExampleAvgPool2d() {
	pool := kernel.NewPool(1)
	defer pool.Close()
	x, y := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}, make([]float32, 4)
	kernel.NewAdaptiveAvgPool2d(pool, 1, 3, 3, 2, 2).Run(y, x)
	fmt.Println(y)
	// Output: [3 4 6 7]
}
