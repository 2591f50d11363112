// Package launcher runs a program as the workers of a job, one process each, and supervises them: a job never hangs because one of
// them failed, never leaves a process behind, and says why it failed.
//
// # Main types
//
// [Run] runs the job that a [Config] describes; `tandem run` is Run behind flags. [Spawn] does the same for a function of the running
// program, which starts itself again, in the manner of torch.multiprocessing.spawn:
//
//	func main() {
//		launcher.Register("train", train)
//		launcher.Init() // a spawned process does not come back from here
//		err := launcher.Spawn(context.Background(), 4, "train")
//		...
//	}
//
// What a worker knows of its job is in its environment; package internal/job has the variables.
//
// # Life cycle
//
// Run binds rank 0's socket, starts all workers, and waits. Rank 0 inherits the socket; it stays the same when the job is started
// again, so that its port cannot be lost. A worker that ends with 0 while others run is no failure. When one fails, the others get
// SIGTERM, to their process groups, and have the grace time to end; then they are killed. Those that have left word of a failure, too,
// get it a second later, so that they can end by themselves. The same happens, with the signal that was given, when the context ends.
// What a worker leaves in its process group ends with it. When no worker is left, whatever else they have started is killed as well:
// processes of the job are known by a number in their environment, so that neither a session of their own nor the loss of their parent
// hides them. What clears its environment and leaves its group is beyond reach.
//
// Then output is read to its end, reports are collected, and the job is over or, after a failure and with restarts left, started
// again as a whole. The states are drawn in state.go.
//
// A launcher that is killed cannot do any of this. Its workers ask the system to die with it, and a guard does the rest: a process of
// this same executable that sleeps until the launcher is gone, and then kills what is marked as the job's. A program that imports
// this package therefore has to bear being started as its own guard: this package's init function takes over before main.
//
// # Several nodes
//
// Each node has a launcher of its own, started by Slurm, mpirun or Kubernetes with the same RunID, address and port and with its own
// Node. They do not speak with each other: workers of a node that fails are missed by the others' workers, whose launchers then see
// them fail. All need the same token, which is TANDEM_TOKEN where they start, or else made of the RunID; a RunID that others can
// guess keeps nobody out. With one node every attempt has a random token.
//
// # Input and output
//
// Workers have no standard input: they find its end. The console gets whole lines, each with its rank if there are several; lines of more than 64 KiB come in pieces that end or begin
// with [...]. Log files have every byte as it was printed. When the console's reader goes, workers run on.
//
// # Concurrency
//
// Several jobs may run at a time. Of each:
//
//	goroutine                   started by  owns                                        ends
//	Run's caller, locked to     the caller  the state machine, every start, signals,    when the job has ended
//	its thread                              sweeping, collecting
//	one a worker                its start   the wait for its end                        with the worker
//	two a worker                its start   a pipe, its log file; prints under the      with the pipe
//	                                        console's lock
//	one a call of Interrupt     Interrupt   the arrival of signals                      its stop function
//
// The thread matters because the system counts it, not the process, as the parent with which workers die; the processors that workers
// may run on are set through it as well.
//
// # Errors
//
// Run's errors are listed there. [JobError] has one [WorkerFailure] for each worker that failed, the root cause first: what a worker
// reported of itself, what can be seen of its end, and the last lines of its stderr.
package launcher
