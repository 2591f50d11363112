// Package exec runs tensor programs on CUDA cards.
//
// [Load] compiles an [ir.Program] for a [cuda.Card] and its memory; [Exec.Run] runs it. An [Exec] is an [ir.Executable].
//
// # From program to card
//
//	plan.go     makes of every step what goes into the stream: launches of kernels, fills, transfers, calls of libraries
//	index.go    writes the address of an element of a strided operand as C++ with constants, since all shapes are known
//	loop.go     writes an ir.Loop as C++, for one element or four at once
//	fused.go, reduce.go, rows.go, move.go, pool.go, product.go
//	            choose, for each kind of step, a function of kernels/*.cuh and its template arguments
//	parts.go    cuts the update of a large network into parts that need not wait for all of backward
//	ways.go     lists how a product can be carried out: by the library, or by tiles of our own (tensor.go)
//	along.go    has a way for gradients of weights: copies an operand for it, and cuts its inner dimension
//	sums.go     lets an update add up what that leaves in parts
//	filters.go  lists the same for convolutions, and has kernels of our own for images of one channel and for gradients by filters
//	halo.go     has one for convolutions with few filters, and for gradients by what they read
//	trial.go    tries them on the card, the first time, and remembers the fastest
//	ahead.go    has all compiled before that what trials will run, on all cores
//	module.go   collects the kernels, each once, into sources, which package nvrtc compiles, or has compiled before
//	exec.go     takes the executable's own memory and binds the plan to addresses
//	run.go      runs it: the first time task by task, then as graphs captured once
//	branches.go finds which tasks of a graph may run at the same time
//	arrange.go  orders tasks in graphs, in a chain or in branches; contest.go finds out which is faster
//	link.go     says how cards meet those of other ranks within a run
//
// Kernels take addresses as parameters and have everything else built in. Equal programs give equal sources, whatever their memory.
//
// # Determinism
//
// The same program on the same memory gives the same bits again: there are no atomic sums, and the order of every sum follows from
// shapes alone. Random numbers are those of package philox, to the bit; their key is in the control block (control.go), which each run writes, so that a
// captured graph never changes. What is measured, on a card of the same name with the same libraries, is measured once and remembered on disk.
//
// # Segments
//
// Collectives among all ranks are tasks like any other where the card has a [Link] to theirs. Before the first of a run, the ranks meet on the
// host: from there on cards wait for each other, so that whatever a rank may fail for comes before. Without a link, and for collectives
// among the ranks that have samples, the host takes over: the run's [ir.Comm] does them in pinned memory.
//
// Between those the stream carries out everything without the host. The host also takes over before what must not happen where an index is out of range: there it waits and looks at the words in which
// kernels note such indices. Indices that the program's caller has verified cost no wait.
//
// # Arrangements
//
// Within a segment a task waits for those that its own memory concerns and for no others. Graphs can have branches for that. Or they are chains, in which
// a kernel is launched before the one before it is done, on cards that can do that: it waits by itself, at its start for all that came before, or at its
// end where it needs nothing of the kernels that still run. A kernel that waits at its end runs beside those, so a chain is no slower for
// what is beside its longest path, and it takes the time of a launch off each kernel that is on it. What a library launches breaks a chain, and in a chain nothing is
// computed while numbers of other cards are under way: so the first runs are arranged in both ways, some at a time, and timed, and the arrangement whose
// median is less stays. Ranks whose cards exchange in a run try the same and decide together, since the slowest of them makes all of them slow. No result depends on that.
// TANDEM_CUDA_BRANCHES=off or on asks for one of them.
//
// # Concurrency and errors
//
// One goroutine at a time uses an Exec; by Start several runs may be under way. Execs of one card share its stream, in which their work comes
// in the order in which they were started, and its libraries; those of different cards are independent. An error names card, program and step: "exec: card 1: run train: step 12 conv1 (Conv2d): ...". What a
// card reports only at the end names no step; TANDEM_CUDA_GRAPH=off runs step by step and does. An [ir.IndexError] comes out of errors.As.
package exec
