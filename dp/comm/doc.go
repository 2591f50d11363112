// Package comm moves float32 data between the ranks that train together: broadcast, reduce, all-reduce, reduce-scatter,
// all-gather, scatter, gather and barrier.
//
// # Main types
//
// A [Comm] is one rank's end of a group. [NewLocal] makes a group whose ranks are goroutines of this process:
//
//	group, err := comm.NewLocal(2)
//	// in the goroutine of rank r
//	err = group[r].AllReduce(ctx, gradients)
//
// A [Session] connects processes of one host that are a rank each, and makes groups of them:
//
//	session, err := comm.Connect(ctx, place) // where rank 0 is, and which rank this is
//	group, err := session.NewGroup(ctx, facts)
//	err = group.AllReduce(ctx, gradients)
//
// Package commtest holds the tests that both implementations pass. [ForProgram] lets a compiled program use a group.
//
// # Life cycle
//
// Every rank makes the same calls in the same order; a call returns when this rank's part is done and its buffers are its
// own again, with an error or without. Calls allocate nothing, and a context without deadline costs nothing. (Where ranks are processes, a
// wait of more than some milliseconds allocates a little.) Sums are taken in rank order, ((x0 + x1) + x2) + ..., and every rank gets
// the same bits: they depend on the data and the number of ranks, never on timing or on which implementation it is.
//
// Processes meet at rank 0, which listens; a process without the job's token is turned away. [Connect] returns when all have come.
// NewGroup checks that they agree on the facts that they give, a [Fact] each for the version, the strategy, every parameter's shape; then
// rank 0 makes memory, which all map. It has no name, in /dev/shm or elsewhere, and ends with the last process that maps it. A
// session makes as many groups as are needed, the next when one has broken. The connections stay open: where one ends without goodbye, a
// process has ended, and every group of the session breaks at once.
//
// # Concurrency
//
// One goroutine at a time uses a Comm and the Comms that its Sub returns; only Err, Abort and Close may be called at any time
// from anywhere. The methods of a Session may be called from anywhere; it has a goroutine for each connection, until Close.
//
// # Errors
//
// Nothing waits forever. A rank that waits for others gives up when its context ends, when a rank aborts or closes, when a process ends, or
// when the limit passes ([Timeout], or the variable TANDEM_TIMEOUT, or 5 minutes). By then the ranks no longer agree
// on what comes next, so that the first failure breaks the group, for good: the ranks that wait return at once, and so
// does every later call.
//
//	*ArgumentError      this call cannot work: a root out of range, parts that do not fit
//	*MismatchError      ranks have made different calls; to each rank that took part
//	*TimeoutError       ranks have not come; to each rank that waited
//	*BrokenError        the group broke earlier, or another rank broke it; wraps the cause
//	*RemoteError        the cause, if it is another process's: its text, and whether it was a context's end
//	*DisagreementError  ranks gave different facts; to each rank
//
// A rank whose context ends gets an error that wraps the context's.
package comm
