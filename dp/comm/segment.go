package comm

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"
)

// The layout of the memory that the processes of a group share. All numbers are in the host's byte order; words that several
// processes write or wait for have a pair of cache lines of their own.
//
//	0        header: magic, world, nonce; broken, 0 or 1 + the rank whose record says why the group broke
//	ranks    one a rank: bell, asleep, gone
//	teams    one for each k = 2..world, the ranks 0..k-1: fate, waiting; and one cell a rank: phase, done, two descriptors
//	records  one a rank: why it broke the group (record.go)
//	stages   one a rank: two areas, each of in and out, where data lies for the others (supersteps.go)
//
// It exists as long as a process maps it, and has no name in any file system.
const (
	apart = 128 // what keeps two words from slowing each other down

	magic = 0x314d454d4d444e54 // "TNDMMEM1": the digit is the layout's version

	worldAt  = 8
	nonceAt  = 16
	nonceLen = 16
	brokenAt = apart
	ranksAt  = 2 * apart

	bellAt   = 0 // of a rank; a futex
	asleepAt = 4
	goneAt   = 8

	fateAt     = 0     // of a team
	waitingAt  = apart // ranks that may sleep until others are done
	cellsAt    = 2 * apart
	phaseAt    = 0 // of a cell
	doneAt     = apart
	descriptAt = 2 * apart

	recordSize = 32 << 10

	// maxWorld is how many ranks can share memory.
	maxWorld = 64

	// inElems and outElems are the elements of a stage's in and out: what a rank shows the others of its data, and of its sums,
	// in one superstep: so much that a superstep takes longer than to meet, so little that it stays in the cache that CPUs share.
	inElems, outElems = 64 << 10, 32 << 10
	areaElems         = inElems + outElems
)

// segment is a process's mapping of that memory.
type segment struct {
	mem   []byte // nil when it is unmapped
	world int
	teams []int // by number of ranks, where the team lies
}

func descriptorWords(k int) int { return 3 + k }

func cellSize(k int) int {
	return descriptAt + (2*8*descriptorWords(k)+apart-1)/apart*apart
}

// teamsAt is where the teams lie, by their number of ranks; that of world+1 ranks is the end of all.
func teamsAt(world int) []int {
	at := make([]int, world+2)
	at[2] = ranksAt + world*apart
	for k := 2; k <= world; k++ {
		at[k+1] = at[k] + cellsAt + k*cellSize(k)
	}
	return at
}

func (s *segment) recordsAt() int { return s.teams[s.world+1] }

func (s *segment) stagesAt() int {
	const page = 4096
	return (s.recordsAt() + s.world*recordSize + page - 1) / page * page
}

// size is how much memory the ranks share.
func (s *segment) size() int { return s.stagesAt() + s.world*2*4*areaElems }

// newSegment makes the memory of a group. The others map the file by openSegment, before the caller closes it.
func newSegment(world int) (s *segment, file *os.File, err error) {
	if world < 2 || world > maxWorld {
		return nil, nil, fmt.Errorf("comm: shared memory for %d ranks: it serves 2 to %d of one host", world, maxWorld)
	}
	s = &segment{world: world, teams: teamsAt(world)}
	s.mem, file, err = createMemory(s.size())
	if err != nil {
		return nil, nil, fmt.Errorf("comm: %.1f MiB of shared memory for %d ranks: %w", float64(s.size())/(1<<20), world, err)
	}
	_, _ = rand.Read(s.nonce()) // never fails
	s.long(worldAt).Store(uint64(world))
	s.long(0).Store(magic)
	return s, file, nil
}

// openSegment maps the memory of a group of world ranks that lies at path, if it is the one with that nonce.
func openSegment(path string, world int, nonce []byte) (s *segment, err error) {
	if world < 2 || world > maxWorld {
		return nil, fmt.Errorf("comm: shared memory for %d ranks: it serves 2 to %d of one host", world, maxWorld)
	}
	s = &segment{world: world, teams: teamsAt(world)}
	s.mem, err = mapMemory(path, s.size())
	if err != nil {
		return nil, fmt.Errorf("comm: shared memory of %d ranks: %w", world, err)
	}
	if s.long(0).Load() != magic || s.long(worldAt).Load() != uint64(world) || !bytes.Equal(s.nonce(), nonce) {
		s.unmap()
		return nil, fmt.Errorf("comm: %s is not the shared memory of this group of %d ranks", path, world)
	}
	return s, nil
}

func (s *segment) unmap() {
	unmapMemory(s.mem)
	s.mem = nil
}

func (s *segment) nonce() []byte { return s.mem[nonceAt : nonceAt+nonceLen] }

func (s *segment) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&s.mem[at])) }

func (s *segment) long(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&s.mem[at])) }

func (s *segment) broken() *atomic.Uint32 { return s.word(brokenAt) }

func (s *segment) bell(r int) *atomic.Uint32   { return s.word(ranksAt + r*apart + bellAt) }
func (s *segment) asleep(r int) *atomic.Uint32 { return s.word(ranksAt + r*apart + asleepAt) }
func (s *segment) gone(r int) *atomic.Uint32   { return s.word(ranksAt + r*apart + goneAt) }

func (s *segment) fate(k int) *atomic.Uint64    { return s.long(s.teams[k] + fateAt) }
func (s *segment) waiting(k int) *atomic.Uint32 { return s.word(s.teams[k] + waitingAt) }

func (s *segment) cell(k, r int) int { return s.teams[k] + cellsAt + r*cellSize(k) }

func (s *segment) phase(k, r int) *atomic.Uint64 { return s.long(s.cell(k, r) + phaseAt) }
func (s *segment) done(k, r int) *atomic.Uint64  { return s.long(s.cell(k, r) + doneAt) }

// descriptor is what rank r calls in team k: op, length, root, counts. There are two, which its calls use in turn.
func (s *segment) descriptor(k, r, turn int) []int64 {
	n := descriptorWords(k)
	return unsafe.Slice((*int64)(unsafe.Pointer(&s.mem[s.cell(k, r)+descriptAt+turn*8*n])), n)
}

func (s *segment) record(r int) []byte {
	at := s.recordsAt() + r*recordSize
	return s.mem[at : at+recordSize]
}

// stage is area 0 or 1 of rank r: what the others may read of its data, and of its sums.
func (s *segment) stage(r, area int) (in, out []float32) {
	at := s.stagesAt() + (2*r+area)*4*areaElems
	all := unsafe.Slice((*float32)(unsafe.Pointer(&s.mem[at])), areaElems)
	return all[:inElems:inElems], all[inElems:]
}
