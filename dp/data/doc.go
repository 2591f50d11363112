// Package data feeds training: batches of samples, shuffled, prefetched in the
// background, and divided over ranks.
//
// # Overview
//
// A [Dataset] is a numbered set of samples, each an input and a target of fixed
// shapes. [TensorDataset] is one that lies in memory; write your own by copying
// samples into a batch's rows. A [Loader] says how a dataset becomes batches. Its
// life is one call for every epoch:
//
//	ds, err := data.NewTensorDataset(x, y)
//	loader, err := data.NewLoader(ds, 64, data.Shuffle(seed))
//	for epoch := range epochs {
//		for batch, err := range loader.Epoch(ctx, epoch) {
//			if err != nil {
//				return err
//			}
//			loss, err := model.Step(ctx, batch.X, batch.Y)
//			...
//		}
//	}
//
// # Order
//
// Everything is deterministic: the batches of an epoch depend on the dataset's
// length, the batch size, the shuffling seed and the epoch's number, not on
// timing, prefetching or how often the epoch was run before. Training can resume
// at any epoch.
//
// # Ranks
//
// The batch size counts the samples of all ranks together. With [Shard](rank,
// worldSize) a loader gives one rank's part of every batch, by the rule of
// [Chunks]; the ranks see together exactly the batches that one would. Every
// rank gets the same number of batches, so that ranks stay in step: where there
// is nothing for it, a rank gets an empty batch, with nil tensors. A mean over
// the batch needs each rank's part weighted by its share,
// batch.Len() / batch.GlobalSize.
//
// # Memory
//
// A loop owns as many batches as are prefetched and one more, and fills them
// again and again: a batch, its tensors and indices included, is valid until the
// loop asks for the next one. Clone what must live longer.
//
// # Concurrency
//
// A Loader is immutable, and any number of goroutines may run epochs of it at
// once, each with memory of its own. Prefetching calls the dataset from a
// goroutine that lives no longer than the loop: breaking out of it, an error or
// the end of the context stops it, and it is gone when the loop is left.
//
// # Errors
//
// Wrong arguments are errors of the constructors. A sample that can't be read
// ends the epoch with an error that names the epoch, the batch and the sample's
// index ([SampleError]). The end of a context is an error for which
// errors.Is(err, ctx.Err()) holds.
package data
