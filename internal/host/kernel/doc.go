// Package kernel holds the float32 loops that training on the CPU runs on: matrix products, convolutions, poolings,
// softmax, elementwise kernels, reductions and strided copies. It knows slices, shapes and strides, and nothing of
// graphs or programs.
//
// # Levels
//
// Every kernel exists for each [Level]: plain Go everywhere, AVX2 and AVX-512 assembly on amd64. [Best] is the highest
// the CPU can run; the build tag noasm leaves plain Go only. Levels differ in rounding (the assembly fuses
// multiply-adds and sums in another order), and nothing else.
//
// # Life cycle
//
// A [Pool] owns a fixed set of worker goroutines and their scratch memory. Plans ([Gemm], [Conv2d], ...) are made once
// for a pool and a shape; making one reserves the scratch it needs, and running it allocates nothing:
//
//	pool := kernel.NewPool(4)
//	defer pool.Close()
//	product := kernel.NewGemm(pool, kernel.GemmShape{M: 64, N: 512, K: 784})
//	product.Run(c, a, b, kernel.Epilogue{ColBias: bias, ReLU: true})
//
// A pool, with all plans made for it, belongs to one goroutine at a time. Different pools are independent.
//
// # Numbers
//
// Results depend on the level and the shapes, never on the number of threads: work is cut by shape, and partial sums
// are combined in a fixed order. NaN and Inf travel as in IEEE arithmetic; [Vector] says how maxima treat NaN.
//
// # Errors
//
// Shapes and slices that do not fit are broken invariants of the caller's compiler, so they panic.
package kernel
