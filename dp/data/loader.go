package data

import (
	"errors"
	"fmt"

	"gorgonia.org/tensor"
)

// Loader makes batches of a dataset's samples. It is immutable.
type Loader struct {
	ds           Dataset
	n            int // samples
	xSpec, ySpec Spec
	batchSize    int

	shuffle  bool
	seed     uint64
	dropLast bool
	prefetch int
	rank     int
	world    int
}

// Option is an option of [NewLoader].
type Option func(*Loader)

// Shuffle takes the samples of epoch e in the order of a random permutation that
// depends on seed + e alone. Ranks of one training must have the same seed.
// Without it the order is the dataset's.
func Shuffle(seed uint64) Option {
	return func(l *Loader) { l.shuffle, l.seed = true, seed }
}

// DropLast leaves out an epoch's last batch where it would be smaller than the
// batch size. Without it the last batch holds what is left.
func DropLast() Option {
	return func(l *Loader) { l.dropLast = true }
}

// Prefetch makes up to depth batches ahead, in the background; 0 makes each when
// the loop asks for it. The default is 2.
func Prefetch(depth int) Option {
	return func(l *Loader) { l.prefetch = depth }
}

// Shard gives the part of one rank of worldSize, numbered from 0, of every batch:
// Chunk(size of the batch, worldSize, rank). The default is rank 0 of 1: all.
func Shard(rank, worldSize int) Option {
	return func(l *Loader) { l.rank, l.world = rank, worldSize }
}

// NewLoader makes a loader of batches of batchSize samples, counted over all
// ranks. That nothing would ever come out of it is an error too: an empty
// dataset, or one that is smaller than the only batch that [DropLast] leaves.
func NewLoader(ds Dataset, batchSize int, opts ...Option) (*Loader, error) {
	l := &Loader{ds: ds, batchSize: batchSize, prefetch: 2, world: 1}
	for _, opt := range opts {
		opt(l)
	}
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("data: make a loader: %w", err)
	}
	return l, nil
}

// validate takes the dataset's form and checks everything against each other.
func (l *Loader) validate() error {
	if l.ds == nil {
		return errors.New("the dataset is nil")
	}
	l.n = l.ds.Len()
	l.xSpec, l.ySpec = l.ds.Specs()
	switch {
	case l.batchSize <= 0:
		return fmt.Errorf("batch size %d, want at least 1", l.batchSize)
	case l.prefetch < 0:
		return fmt.Errorf("prefetch depth %d, want 0 (none) or more", l.prefetch)
	case l.world <= 0:
		return fmt.Errorf("world size %d, want at least 1", l.world)
	case l.rank < 0 || l.rank >= l.world:
		return fmt.Errorf("rank %d, want 0..%d (the world size is %d)", l.rank, l.world-1, l.world)
	case l.n <= 0:
		return fmt.Errorf("the dataset has %d samples", l.n)
	case l.Batches() == 0:
		return fmt.Errorf("dropping the last batch leaves none: %d samples, batch size %d", l.n, l.batchSize)
	}
	return checkSpecs(l.xSpec, l.ySpec)
}

// Batches gives the number of batches of an epoch, the same for every rank.
func (l *Loader) Batches() int {
	if l.dropLast {
		return l.n / l.batchSize
	}
	return (l.n-1)/l.batchSize + 1
}

// Samples gives the number of samples of an epoch, over all ranks: the dataset's
// length, or less with [DropLast].
func (l *Loader) Samples() int {
	return min(l.n, l.Batches()*l.batchSize)
}

// Batch is one rank's part of one batch. It is valid until the loop asks for the
// next.
type Batch struct {
	// X has shape (Len(), input's shape...), Y has shape (Len(), target's
	// shape...). Both are nil when Len() is 0.
	X, Y *tensor.Dense

	// Indices are the samples' numbers in the dataset, row by row.
	Indices []int

	// Step is the batch's number in the epoch, 0..Batches()-1.
	Step int

	// GlobalSize is the number of samples of the batch over all ranks, and Share
	// says which of them these are: row i is sample Share.Lo+i of the batch.
	GlobalSize int
	Share      Range
}

// Len gives the number of samples in this rank's part of the batch.
func (b *Batch) Len() int { return b.Share.Len() }
