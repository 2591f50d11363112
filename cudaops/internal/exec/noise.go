package exec

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// noise fills memory with normal numbers, for what is tried on it: a program's memory may hold zeros at first, for which a card takes less power
// and is faster than for a network's numbers. A word holds two bfloat16, so that it is a float32 of the size of the second, too, and two float16 of
// either sign.
func (e *Exec) noise(at cuda.Ptr, bytes int) (err error) {
	const words = 262139 // a prime, so that repeating them repeats no row
	n := min(bytes, words*wordBytes) / wordBytes * wordBytes
	from, err := e.card.MemHostAlloc(max(n, wordBytes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.card.StreamSynchronize(e.shared), e.card.MemFreeHost(from)) }()
	random := rand.New(rand.NewPCG(1, 2))
	half := func() uint32 { return math.Float32bits(float32(random.NormFloat64())) >> 16 }
	list := make([]uint32, n/wordBytes)
	for i := range list {
		list[i] = half() | half()<<16
	}
	copy(from.Bytes(), ir.Bytes(list))
	if err := e.card.MemcpyHtoD(at, from, 0, n, e.shared); err != nil {
		return err
	}
	for done := n; done < bytes/wordBytes*wordBytes && done > 0; done *= 2 {
		if err := e.card.MemcpyDtoD(at+cuda.Ptr(done), at, min(done, bytes/wordBytes*wordBytes-done), e.shared); err != nil {
			return err
		}
	}
	return nil
}
