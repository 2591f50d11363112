package exec

import (
	"encoding/binary"
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// The control block, in words of 32 bits: what differs from run to run, as struct Runtime of base.cuh has it, then two words a guard:
// value and index of the first index out of range, or all ones. It is written before a run from pinned memory of the same layout, and
// its guards are read back into it; both belong to the captured graph. Where all indices have been checked, a run does neither for their guards.
const (
	wordBytes    = 4
	runtimeBytes = 4 * wordBytes
	guardBytes   = 2 * wordBytes
)

// controlBytes is the block's size.
func (p *plan) controlBytes() int { return runtimeBytes + guardBytes*len(p.guards) }

// guardPlace is where guard i is.
func guardPlace(i int) place { return place{control, runtimeBytes + guardBytes*i} }

// imageBytes is what a run has of pinned memory: its control block, then what it puts out.
func (p *plan) imageBytes() int { return p.controlBytes() + p.reported() }

// write makes the block of a run.
func (p *plan) write(block []byte, rt *ir.Runtime) {
	binary.NativeEndian.PutUint64(block, rt.Key())
	binary.NativeEndian.PutUint64(block[8:], uint64(rt.FirstSample))
	for i := runtimeBytes; i < len(block); i++ {
		block[i] = 0xff
	}
}

// verify is the error of the first step that found an index out of range, if one did.
func (p *plan) verify(block []byte) error {
	for i, g := range p.guards {
		word := binary.NativeEndian.Uint64(block[runtimeBytes+guardBytes*i:])
		if word == math.MaxUint64 {
			continue
		}
		err := &ir.IndexError{What: g.check.What, Index: int(word >> 32), Value: int(int32(word)), Bound: g.check.Bound}
		return stepError(p.program, g.step, err)
	}
	return nil
}
