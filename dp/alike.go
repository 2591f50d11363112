package dp

import (
	"context"
	"crypto/sha256"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-train/tandem/internal/ir"
)

// alike reports whether the models of all ranks have the same values. Those that were drawn by the same seed or read from the same file have, and
// to find that out takes a fraction of what it takes to give all of them to the others.
func (t *DataParallel) alike(ctx context.Context) (bool, error) {
	own := t.digest()
	const words = len(own) / 4
	all := make([]uint32, words*t.WorldSize())
	of := func(r int) []uint32 { return all[words*r:][:words] }
	copy(ir.Bytes(of(t.Rank())), own[:])
	if err := t.group().AllGather(ctx, ir.Words[float32](ir.Bytes(all))); err != nil {
		return false, err
	}
	for r := range t.WorldSize() {
		if !slices.Equal(of(r), of(0)) {
			return false, nil
		}
	}
	return true, nil
}

// digest is a sum that stands for the values of this process's model, of pieces that many cores share.
func (t *DataParallel) digest() [sha256.Size]byte {
	var pieces [][]byte
	for _, p := range t.compiler.Layout.Params {
		pieces = slices.AppendSeq(pieces, slices.Chunk(ir.Bytes(p.Parameter.Data()), piece))
	}
	for _, b := range t.compiler.Layout.Buffers {
		pieces = slices.AppendSeq(pieces, slices.Chunk(ir.Bytes(b.Buffer.Data()), piece))
	}
	sums := make([]byte, sha256.Size*len(pieces))
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range pieces {
		all.Go(func() error {
			sum := sha256.Sum256(p)
			copy(sums[sha256.Size*i:], sum[:])
			return nil
		})
	}
	_ = all.Wait() // none fails
	return sha256.Sum256(sums)
}
