// Package comm moves float32 data between the ranks that train together: broadcast, reduce, all-reduce, reduce-scatter,
// all-gather, scatter, gather and barrier.
//
// # Main types
//
// A [Comm] is one rank's end of a group. [NewLocal] makes a group whose ranks are goroutines of this process; package
// commtest holds the tests that every implementation passes. [ForProgram] lets a compiled program use a group.
//
//	group, err := comm.NewLocal(2)
//	// in the goroutine of rank r
//	err = group[r].AllReduce(ctx, gradients)
//
// # Life cycle
//
// Every rank makes the same calls in the same order; a call returns when this rank's part is done and its buffers are its
// own again, with an error or without. Calls allocate nothing, and a context without deadline costs nothing. Sums are
// taken in rank order, ((x0 + x1) + x2) + ..., and every rank gets the same bits: they depend on the data and the number
// of ranks, never on timing.
//
// # Concurrency
//
// One goroutine at a time uses a Comm and the Comms that its Sub returns; only Abort and Close may be called at any time
// from anywhere.
//
// # Errors
//
// Nothing waits forever. A rank that waits for others gives up when its context ends, when a rank aborts or closes, or
// when the limit passes ([Timeout], or the variable TANDEM_TIMEOUT, or 5 minutes). By then the ranks no longer agree
// on what comes next, so that the first failure breaks the group, for good: the ranks that wait return at once, and so
// does every later call.
//
//	*ArgumentError  this call cannot work: a root out of range, parts that do not fit
//	*MismatchError  ranks have made different calls; to each rank that took part
//	*TimeoutError   ranks have not come; to each rank that waited
//	*BrokenError    the group broke earlier, or another rank broke it; wraps the cause
//
// A rank whose context ends gets an error that wraps the context's.
package comm
