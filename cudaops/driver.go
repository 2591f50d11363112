package cudaops

import "errors"

// driver is what this package needs of a CUDA driver. Cards are named by logical
// number: the driver has chosen and ordered them already. All methods may be
// called concurrently.
type driver interface {
	// cards describes the visible cards, in logical order. It is the same at
	// every call.
	cards() []cardInfo

	// malloc takes bytes of a card's memory, a multiple of granularity. It
	// fails with errCardFull (wrapped or not) when the card has no room.
	malloc(card int, bytes int64) (region, error)

	// granularity is the unit in which malloc takes memory: a multiple of
	// blockUnit.
	granularity() int64

	// memInfo is the card's free and total memory, for all processes together.
	memInfo(card int) (free, total int64, err error)

	// overhead is how many bytes of the card this process holds beside what
	// malloc gave: its context, kernels and libraries. Nobody may call malloc, or
	// release what it gave, meanwhile.
	overhead(card int) (int64, error)

	// spare is how many bytes more overhead may come to when programs are loaded
	// and run: requests for memory leave so much of a cap.
	spare() int64

	// noContext reports whether the card has no room for this process's context, without
	// which malloc gives nothing, whatever is free.
	noContext(card int) bool

	// others lists the other processes on the card, as far as they are known.
	others(card int) []ProcessMemory

	// synchronize returns when all work given to the card is done.
	synchronize(card int) error
}

// region is a piece of card memory that a driver gave.
type region interface {
	// host is the region's bytes where the host can address them, else nil.
	host() []byte

	// write copies src to the region's bytes from off; read copies from there
	// to dst. Bounds have been checked.
	write(off int64, src []byte) error
	read(dst []byte, off int64) error

	// recycle says that n bytes from off were in use before and are now handed
	// out again: their contents mean nothing.
	recycle(off, n int64)

	// release gives the memory back. The region is not used afterwards.
	release() error
}

// errCardFull is malloc's error when the card has not enough free memory.
var errCardFull = errors.New("the card has not enough free memory")

// cardInfo is a card as its driver describes it.
type cardInfo struct {
	physical int // number among all cards of the machine, or UnknownPhysical
	props    Properties
}
