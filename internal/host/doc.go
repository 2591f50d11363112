// Package host runs tensor programs on the CPU.
//
// [Open] gives an [ir.Device] whose memory is ordinary Go memory, and which runs programs on any memory that the host can
// address. Its Load turns an [ir.Program] into an [Exec]: every step becomes a small struct whose slices, geometry and workspaces
// are resolved, so that running it allocates nothing and takes no lock.
//
// # How steps run
//
// Products, convolutions, pooling and softmax are calls of package kernel on prepared plans. Elementwise loops, which is what
// everything else fuses into, run in a block interpreter:
//
//	space.go   merges dimensions that lie together for all operands, so that most loops become one long row
//	loop.go    gives every instruction its operands: memory itself, a buffer in the first-level cache, or a scalar
//	tile.go    runs the code on one tile, about a thousand elements, one kernel call an instruction
//	apply.go   says which kernel an ir.Fn is
//	fused.go   all tiles of a loop; reduce.go: the same with a reduction at its end
//
// # Determinism
//
// Tiles, chunks and the order of every sum follow from shapes alone, never from the number of threads or from timing: the
// same program on the same memory gives the same bits on 1 or 64 threads.
//
// # Concurrency
//
// An Exec works on its memories and on workspaces of its own: one Run at a time. Execs of one [Device] share its threads, so
// they take turns, too; those of different devices are independent. Steps of a Run are separated by a wait for all threads.
//
// # Errors
//
// Run's errors name program and step and wrap the cause: "host: train: step 12 conv1 (Conv2d): ...". A context that ends is
// noticed between steps, as long as the run may still stop without leaving parameters half updated; see [ir.Executable]. An
// [ir.IndexError] comes out of errors.As.
package host
