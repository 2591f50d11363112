package exec

import (
	"encoding/binary"
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// The control block, in words of 32 bits: what differs from run to run, as struct Runtime of base.cuh has it, then two words a guard:
// value and index of the first index out of range, or all ones. It is written before a run from pinned memory of the same layout, and
// its guards are read back into it; both belong to the captured graph.
const (
	runtimeWords = 4
	guardWords   = 2
)

// controlBytes is the block's size.
func (p *plan) controlBytes() int { return 4 * (runtimeWords + guardWords*len(p.guards)) }

// write makes the block of a run.
func (p *plan) write(block []byte, rt *ir.Runtime) {
	binary.NativeEndian.PutUint64(block, rt.Key())
	binary.NativeEndian.PutUint64(block[8:], uint64(rt.FirstSample))
	for i := 4 * runtimeWords; i < len(block); i++ {
		block[i] = 0xff
	}
}

// verify is the error of the first step that found an index out of range, if one did.
func (p *plan) verify(block []byte) error {
	for i, g := range p.guards {
		word := binary.NativeEndian.Uint64(block[4*(runtimeWords+guardWords*i):])
		if word == math.MaxUint64 {
			continue
		}
		err := &ir.IndexError{What: g.check.What, Index: int(word >> 32), Value: int(int32(word)), Bound: g.check.Bound}
		return stepError(p.program, g.step, err)
	}
	return nil
}
