// Package dp trains a model on several cards at once, in the manner of torch.nn.DataParallel.
//
// [New] takes a model, its loss and its optimizer, places the parameters on every card, and returns a [DataParallel]:
//
//	t, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1), dp.DeviceIDs(0, 2, 3))
//	loss, err := t.Step(ctx, x, y) // scatter, apply in parallel, gather gradients, update, replicate
//	out, err := t.Forward(ctx, x)  // evaluation: scatter, apply, gather on the output card
//	err = t.Close()
//
// Cards are named by their logical numbers (package cudaops). The first of the device ids is the primary card: with the [Gather]
// strategy it sums the gradients and updates. Without cards, training runs on the host, as one rank.
//
// Results are exact: a rank's share of the batch counts by its samples, so that loss, gradients and parameters are those of one
// card on the whole batch, up to rounding, however uneven the shares. The same seed, batches and number of ranks give the same
// bits again.
//
// # Several processes
//
// Under a launcher (tandem run, torchrun's variables, Slurm, Open MPI) the same program is started once a card, and each process is one rank.
// New joins them; what they train is the same model with the same numbers as on the cards of one process. There are two ways to feed them:
//
//	loss, err := t.Step(ctx, x, y)      // rank 0 has the batch and scatters it; the others pass nil
//	loss, err := t.StepShard(ctx, x, y) // every rank has its share of the batch, from a loader with data.Shard
//
// Every process makes the same calls in the same order, but one whose batches end early may wait for the others in [DataParallel.Join],
// Forward, LoadStateDict or a checkpoint's call: until they come it takes part in their steps with no samples, and loss and gradients stay
// exact. Steps that one process is told to end (its context is done) end on all, at the same step. [DataParallel.Rank] is 0 in the process
// that should print.
//
// Ranks that were not built alike (another version, model, seed, optimizer, strategy) are told so by New, with the rank and what
// differs. When a rank's process ends, the others hear of it at once. Every wait has a limit ([Timeout]), and its error names the ranks
// that did not come.
//
// # Life cycle
//
// Programs are compiled when a shape of batch is first seen, one a rank, and kept. All memory that they need is taken at that
// moment; [DataParallel.Memory] says how much. What lies between a program's steps is shared by all programs of a rank, since they run one after the
// other. Where a card is short of memory, programs of other shapes are unloaded until they are wanted again. Close gives everything back.
//
// [DataParallel.SaveCheckpoint] writes all that training goes on from to a file, and [DataParallel.LoadCheckpoint] goes on from it: later, in another process, on
// other ranks. That is also the way on after a [*TornError] or the loss of a worker.
//
// # Knowing before running
//
// [DataParallel.Plan] says for any shape of batch what it takes of each card, by kind, against what is free and allowed, whether it fits, and the
// size of the largest batch that does: a program's memory is known when it is compiled, and the card's allocator is asked on a copy. A batch
// that does not fit fails before anything of it runs or stays allocated, with that plan in a [*FitError]. With [AutoMicroBatch]
// it is computed in parts instead, with the same result; with [Recompute] activations take less, and are computed again. [DataParallel.Timeline]
// says what a step keeps when.
//
// # Concurrency
//
// Each rank has a goroutine of its own, which owns the rank's device. The methods of a DataParallel may be called from any
// goroutine, one call at a time: a second one waits. Only [DataParallel.Progress], for those who watch, waits for nothing; package metrics
// shows it to Prometheus.
//
// # Errors
//
// A caller's mistake is found before anything has run, and is an error that names it: [*cudaops.InvalidDeviceError],
// [*DuplicateDeviceError], [*PrimaryCardError], [*InputError], [*IndexError] for a label outside the classes, [*FitError] for a batch that is too
// large for the cards. When a rank fails,
// all are joined and the lowest failing rank's error is returned as a [*ReplicaError]; parameters are then as before the step, unless a
// card or its process has failed while cards exchanged: then the trainer gives a [*TornError] from there on. A
// context that ends stops a step before its update, or not at all. In a job of several processes, an error of one is on the others a
// [comm.BrokenError] that names the rank and says what happened there; the next call connects the ranks anew, so that all may go on
// together.
package dp
