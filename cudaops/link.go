package cudaops

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/nccl"
	"github.com/tandem-train/tandem/internal/ir"
)

// link is a card's end of a group of cards, one a rank, that exchange by NCCL.
//
// A card that waits for another one in its stream waits as long as it takes, and all that wait for this card do too. So a watchdog looks
// after it: when the ranks' group on the host is broken and the card does not come to an end, or takes longer than the group's limit, it
// aborts the communicator. The stream then goes on, with what happened to be in memory, and Err says that this is so.
type link struct {
	card  *cuda.Card
	comm  *nccl.Comm
	peers ir.Peers
	done  cuda.Event // behind what the card has last been given to do together with others

	mu     sync.Mutex
	giving bool      // between Begin and End
	busy   bool      // done may not have come
	since  time.Time // the last Begin
	err    error     // why it was aborted

	stop  chan struct{}
	tasks sync.WaitGroup
}

var _ exec.Link = (*link)(nil)

const (
	// watched is how often the watchdog looks.
	watched = 5 * time.Millisecond
	// grace is for a card that is about to end when the group breaks: a rank that leaves in peace has done its part.
	grace = 500 * time.Millisecond
	// parting is how long a communicator may take to end. One that takes longer is left to itself.
	parting = 2 * time.Second
)

func newLink(card *cuda.Card, comm *nccl.Comm, peers ir.Peers) (*link, error) {
	l := &link{card: card, comm: comm, peers: peers, stop: make(chan struct{})}
	err := card.Do(func() (err error) {
		l.done, err = card.EventCreate(false)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.tasks.Go(l.watch)
	return l, nil
}

// Put implements [exec.Link].
func (l *link) Put(s cuda.Stream, list []exec.Collective) error {
	if err := l.Err(); err != nil {
		return err
	}
	if len(list) == 1 && !l.apart(&list[0]) {
		return l.put(s, &list[0])
	}
	return l.comm.Group(func() error {
		for i := range list {
			if err := l.put(s, &list[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// apart reports whether a collective has shares of different sizes, which NCCL does not know: each is then a collective of its own.
func (l *link) apart(c *exec.Collective) bool {
	return (c.Kind == ir.ReduceScatter || c.Kind == ir.AllGather) && c.N%l.peers.Size() != 0
}

func (l *link) put(s cuda.Stream, c *exec.Collective) error {
	world, rank := l.peers.Size(), l.peers.Rank()
	at := func(i int) cuda.Ptr { return c.At + cuda.Ptr(4*i) }
	if l.apart(c) {
		for r := range world {
			lo, hi := ir.ShareOf(c.N, r, world)
			if lo == hi {
				continue
			}
			one := l.comm.Broadcast
			if c.Kind == ir.ReduceScatter {
				one = l.comm.Reduce
			}
			if err := one(at(lo), at(lo), hi-lo, r, s); err != nil {
				return err
			}
		}
		return nil
	}
	share := c.N / world
	switch c.Kind {
	case ir.AllReduce:
		return l.comm.AllReduce(c.At, c.At, c.N, s)
	case ir.ReduceTo:
		return l.comm.Reduce(c.At, c.At, c.N, c.Root, s)
	case ir.BroadcastFrom:
		return l.comm.Broadcast(c.At, c.At, c.N, c.Root, s)
	case ir.ReduceScatter:
		return l.comm.ReduceScatter(c.At, at(rank*share), share, s)
	case ir.AllGather:
		return l.comm.AllGather(at(rank*share), c.At, share, s)
	}
	panic(fmt.Sprintf("cudaops: unknown kind of collective %d", uint8(c.Kind)))
}

// Begin implements [exec.Link].
func (l *link) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giving, l.since = true, time.Now()
}

// End implements [exec.Link].
func (l *link) End(s cuda.Stream) error {
	err := l.card.EventRecord(l.done, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giving, l.busy = false, true
	return err
}

// Err implements [exec.Link].
func (l *link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// watch is the watchdog.
func (l *link) watch() {
	tick := time.NewTicker(watched)
	defer tick.Stop()
	var broken time.Time // when that was first seen
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		since, waiting := l.waiting()
		if !waiting {
			continue
		}
		err := l.peers.Err()
		if err == nil {
			err = l.comm.AsyncError()
		}
		switch {
		case err != nil && broken.IsZero():
			broken = time.Now()
			continue
		case err != nil && time.Since(broken) < grace:
			continue
		case err == nil && time.Since(since) < l.peers.Limit():
			continue
		case err == nil:
			err = fmt.Errorf("%s has waited for the other cards longer than %v", String(l.card.Ordinal), l.peers.Limit())
		}
		l.abort(fmt.Errorf("the cards' exchange was ended, so that parameters and optimizer state are not to be used any more: %w", err))
		return
	}
}

// waiting reports whether the card may be waiting for others, and since when.
func (l *link) waiting() (since time.Time, waiting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.giving && l.busy {
		// An error of the card's is seen by whoever waits for the run.
		err := l.card.Do(func() error {
			done, err := l.card.EventDone(l.done)
			l.busy = !done && err == nil
			return err
		})
		if err != nil {
			l.busy = false
		}
	}
	return l.since, l.giving || l.busy
}

// abort ends what the card waits for. NCCL returns from that only when the graphs are gone that hold work of the communicator.
func (l *link) abort(why error) {
	l.mu.Lock()
	l.err = why
	l.mu.Unlock()
	// That the communicator is broken is known: why says so.
	_ = l.card.Do(l.comm.Abort)
}

// Close implements [ir.Link].
func (l *link) Close() error {
	close(l.stop)
	ended := make(chan error, 1)
	go func() {
		l.tasks.Wait() // the watchdog, which may be aborting
		if l.Err() != nil {
			ended <- nil
			return
		}
		ended <- l.card.Do(func() error {
			// Others may be gone without a word, so that leaving properly could take forever.
			if l.peers.Err() != nil {
				return l.comm.Abort()
			}
			return l.comm.Destroy()
		})
	}()
	timer := time.NewTimer(parting)
	defer timer.Stop()
	var err error
	select {
	case err = <-ended:
	case <-timer.C: // the process has one thread more
	}
	return errors.Join(err, l.card.Do(func() error { return l.card.EventDestroy(l.done) }))
}

// Join implements [ir.Joiner].
func (d *realDevice) Join(ctx context.Context, peers ir.Peers) (ir.Link, error) {
	j := &joining{ctx: ctx, peers: peers, device: d}
	l, err := j.join()
	var unlinked *ir.UnlinkedError
	if err != nil && !errors.As(err, &unlinked) {
		err = fmt.Errorf("cudaops: link %s with the other ranks' cards: %w", String(d.card.logical), err)
	}
	if err != nil {
		return nil, err
	}
	d.link = l
	return l, nil
}

// joining is a call of Join. Ranks tell each other how they do after every step that may fail, so that all link their cards or none does.
type joining struct {
	ctx    context.Context
	peers  ir.Peers
	device *realDevice
}

// What ranks tell each other: a state, and the card's identity.
const (
	linkable = iota
	noLibrary
	otherVersion
	sameCard
	noCommunicator
	wrongBytes
)

var unlinked = map[uint32]string{
	noLibrary:      "NCCL (libnccl.so.2) is not found: install it, or name its folder in TANDEM_CUDA_PATH",
	otherVersion:   "its NCCL has another version than rank 0's: let all ranks find the same",
	sameCard:       "it shares its card with a rank before it, which NCCL does not serve",
	noCommunicator: "NCCL does not work there: NCCL_DEBUG=WARN tells why",
	wrongBytes:     "known bytes do not come through NCCL as they were sent: is the machine's IOMMU or PCI ACS on? NCCL_P2P_DISABLE=1 takes another way",
}

func (j *joining) join() (*link, error) {
	lib, own := nccl.Open()
	state, version := uint32(linkable), 0
	if own == nil {
		version = lib.Version()
	} else {
		state = noLibrary
	}
	if err := j.compare(state, version, own); err != nil {
		return nil, err
	}
	var id nccl.ID
	if j.peers.Rank() == 0 {
		if id, own = lib.NewID(); own != nil {
			state = noCommunicator
		}
	}
	if err := j.agree(state, own); err != nil {
		return nil, err
	}
	if err := j.peers.Collective(j.ctx, ir.Collective{Kind: ir.BroadcastFrom}, ir.Words[float32](id.Bytes())); err != nil {
		return nil, err
	}
	comm, own := j.initialize(lib, id)
	if own != nil {
		state = noCommunicator
	}
	if err := j.agree(state, own); err != nil {
		return nil, j.leave(comm, err)
	}
	l, err := newLink(j.device.cuda, comm, j.peers)
	if err != nil {
		return nil, j.leave(comm, err)
	}
	if own = l.test(); own != nil {
		state = noCommunicator
		if errors.Is(own, errWrongBytes) {
			state = wrongBytes
		}
	}
	if err := j.agree(state, own); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// leave gives a communicator back that is not used; it may be nil.
func (j *joining) leave(comm *nccl.Comm, err error) error {
	if comm == nil {
		return err
	}
	return errors.Join(err, j.device.cuda.Do(comm.Abort))
}

// initialize makes this rank's communicator. NCCL waits for all ranks as long as it takes; when the group breaks, it is left to itself.
func (j *joining) initialize(lib *nccl.Library, id nccl.ID) (*nccl.Comm, error) {
	type result struct {
		comm *nccl.Comm
		err  error
	}
	made := make(chan result, 1)
	go func() {
		var r result
		r.err = j.device.cuda.Do(func() (err error) {
			r.comm, err = lib.Init(id, j.peers.Rank(), j.peers.Size())
			return err
		})
		made <- r
	}()
	limit := time.NewTimer(j.peers.Limit())
	defer limit.Stop()
	tick := time.NewTicker(watched)
	defer tick.Stop()
	for {
		select {
		case r := <-made:
			return r.comm, r.err
		case <-limit.C:
			return nil, fmt.Errorf("NCCL has not begun within %v", j.peers.Limit())
		case <-j.ctx.Done():
			return nil, j.ctx.Err()
		case <-tick.C:
			if err := j.peers.Err(); err != nil {
				return nil, err
			}
		}
	}
}

// helloWords is what compare exchanges for each rank: state, version, and 16 bytes that stand for the card's UUID.
const helloWords = 2 + 4

// compare finds out whether the ranks' cards can be linked at all.
func (j *joining) compare(state uint32, version int, own error) error {
	world := j.peers.Size()
	words := make([]uint32, world*helloWords)
	mine := words[helloWords*j.peers.Rank():][:helloWords]
	mine[0], mine[1] = state, uint32(version)
	card := sha256.Sum256([]byte(j.device.card.info.props.UUID))
	copy(ir.Bytes(mine[2:]), card[:])
	if err := j.gather(words); err != nil {
		return err
	}
	for r := range world {
		hello := words[helloWords*r:][:helloWords]
		if hello[0] == linkable && hello[1] != words[1] {
			hello[0] = otherVersion
		}
		for before := range r {
			if hello[0] == linkable && slices.Equal(hello[2:], words[helloWords*before:][2:helloWords]) {
				hello[0] = sameCard
			}
		}
	}
	return j.verdict(func(r int) uint32 { return words[helloWords*r] }, own)
}

// agree tells the others how this rank does and hears how they do.
func (j *joining) agree(state uint32, own error) error {
	words := make([]uint32, j.peers.Size())
	words[j.peers.Rank()] = state
	if err := j.gather(words); err != nil {
		return errors.Join(err, own)
	}
	return j.verdict(func(r int) uint32 { return words[r] }, own)
}

// gather gives every rank every rank's words, of which each has the same number.
func (j *joining) gather(words []uint32) error {
	return j.peers.Collective(j.ctx, ir.Collective{Kind: ir.AllGather}, ir.Words[float32](ir.Bytes(words)))
}

// verdict is the error of the first rank that is not linkable. own is this rank's own.
func (j *joining) verdict(state func(rank int) uint32, own error) error {
	for r := range j.peers.Size() {
		if s := state(r); s != linkable {
			e := &ir.UnlinkedError{Rank: r, Why: unlinked[s]}
			if r == j.peers.Rank() && own != nil {
				e.Why += fmt.Sprintf(" (%v)", own)
			}
			return e
		}
	}
	return nil
}

var errWrongBytes = errors.New("they differ")

// testWords is what each rank sends to all others in the test of a new link.
const testWords = 16 << 10

// test moves known bytes from every card to every other one.
func (l *link) test() error {
	world, rank := l.peers.Size(), l.peers.Rank()
	known := func(r, i int) uint32 { return uint32(r+1)<<20 | uint32(i) } // of rank r, as bits of a small float32
	c := l.card
	return c.Do(func() (err error) {
		n := 4 * testWords * world
		at, err := c.MemAlloc(int64(n))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.MemFree(at)) }()
		staged, err := c.MemHostAlloc(n)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.MemFreeHost(staged)) }()
		words := ir.Words[uint32](staged.Bytes())
		clear(words)
		for i := range testWords {
			words[rank*testWords+i] = known(rank, i)
		}
		if err := c.MemcpyHtoD(at, staged, 0, n, c.Stream); err != nil {
			return err
		}
		l.Begin()
		err = l.Put(c.Stream, []exec.Collective{{Collective: ir.Collective{Kind: ir.AllGather}, At: at, N: testWords * world}})
		if err = errors.Join(err, l.End(c.Stream)); err != nil {
			return errors.Join(err, c.StreamSynchronize(c.Stream))
		}
		if err := c.MemcpyDtoH(staged, 0, at, n, c.Stream); err != nil {
			return err
		}
		if err := c.StreamSynchronize(c.Stream); err != nil {
			return err
		}
		if err := l.Err(); err != nil {
			return err
		}
		for r := range world {
			for i := range testWords {
				if got := words[r*testWords+i]; got != known(r, i) {
					return fmt.Errorf("word %d from rank %d is %#x and was %#x: %w", i, r, got, known(r, i), errWrongBytes)
				}
			}
		}
		return nil
	})
}
