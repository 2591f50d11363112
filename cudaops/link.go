package cudaops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/nccl"
	"github.com/tandem-train/tandem/cudaops/internal/peer"
	"github.com/tandem-train/tandem/internal/ir"
)

// link is a card's end of a group of cards, one a rank, that exchange by kernels of our own over each other's memory, or by NCCL.
//
// A card that waits for another one in its stream waits as long as it takes, and all that wait for this card do too. So a watchdog looks
// after it: when the ranks' group on the host is broken and the card does not come to an end, or takes longer than the group's limit, it
// aborts what the card waits for. The stream then goes on, with what happened to be in memory, and Err says that this is so.
type link struct {
	device *realDevice
	card   *cuda.Card
	ways
	peers ir.Peers
	done  cuda.Event // behind what the card has last been given to do together with others
	met   exec.Meetings

	mu     sync.Mutex
	giving bool      // between Begin and End
	busy   bool      // done may not have come
	since  time.Time // the last Begin
	err    error     // why it was aborted

	stop  chan struct{}
	tasks sync.WaitGroup
}

// ways are how cards exchange. At least one is not nil, the same on all ranks.
type ways struct {
	nccl   *nccl.Comm
	direct *peer.Comm
	note   string // what would be faster, and is missing
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

func newLink(device *realDevice, w ways, peers ir.Peers) (*link, error) {
	l := &link{device: device, card: device.cuda, ways: w, peers: peers, stop: make(chan struct{})}
	err := l.card.Do(func() (err error) {
		l.done, err = l.card.EventCreate(false)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.tasks.Go(l.watch)
	return l, nil
}

// Put implements [exec.Link].
func (l *link) Put(s cuda.Stream, list []exec.Collective, early bool) error {
	if err := l.Err(); err != nil {
		return err
	}
	for len(list) > 0 {
		n, direct := 1, l.isDirect(&list[0])
		for n < len(list) && l.isDirect(&list[n]) == direct {
			n++
		}
		if err := l.putOneWay(s, list[:n], direct, early); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func (l *link) putOneWay(s cuda.Stream, list []exec.Collective, direct, early bool) error {
	if direct {
		return l.putDirect(s, list, early)
	}
	return l.putNCCL(s, list)
}

// TakesTurns implements [exec.Link].
func (l *link) TakesTurns(list []exec.Collective) bool {
	return !slices.ContainsFunc(list, func(c exec.Collective) bool { return !l.isDirect(&c) })
}

// mostDirect is up to how many bytes our own kernels are used where there is NCCL. Between two cards, which NVLink joins, they sum faster at all sizes that
// were measured, 4 bytes to 1 GiB, and what goes one way takes 2 % longer from 256 MiB on; of more cards only the time that small messages take is known
// to be better.
func mostDirect(world int) int64 {
	if world == 2 {
		return math.MaxInt64
	}
	return 4 << 20
}

// isDirect is whether a collective goes by our own kernels. That depends on its size alone, so that it is the same on all ranks, and the order of sums too.
func (l *link) isDirect(c *exec.Collective) bool {
	return l.direct != nil && (l.nccl == nil || 4*int64(c.N) <= mostDirect(l.peers.Size()))
}

func (l *link) putDirect(s cuda.Stream, list []exec.Collective, early bool) error {
	own := make([]peer.Collective, len(list))
	for i, c := range list {
		own[i] = peer.Collective(c)
	}
	return l.direct.Put(s, early, own...)
}

func (l *link) putNCCL(s cuda.Stream, list []exec.Collective) error {
	if len(list) == 1 && !l.apart(&list[0]) {
		return l.put(s, &list[0])
	}
	return l.nccl.Group(func() error {
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
			one := l.nccl.Broadcast
			if c.Kind == ir.ReduceScatter {
				one = l.nccl.Reduce
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
		return l.nccl.AllReduce(c.At, c.At, c.N, s)
	case ir.ReduceTo:
		return l.nccl.Reduce(c.At, c.At, c.N, c.Root, s)
	case ir.BroadcastFrom:
		return l.nccl.Broadcast(c.At, c.At, c.N, c.Root, s)
	case ir.ReduceScatter:
		return l.nccl.ReduceScatter(c.At, at(rank*share), share, s)
	case ir.AllGather:
		return l.nccl.AllGather(at(rank*share), c.At, share, s)
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

// Meetings implements [exec.Link].
func (l *link) Meetings() *exec.Meetings { return &l.met }

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
		if err == nil && l.nccl != nil {
			err = l.nccl.AsyncError()
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
	if l.direct != nil {
		l.direct.Stop()
	}
	if l.nccl != nil {
		// That the communicator is broken is known: why says so.
		_ = l.card.Do(l.nccl.Abort)
	}
}

// Note implements [ir.Link].
func (l *link) Note() string { return l.note }

// Close implements [ir.Link].
func (l *link) Close() error {
	l.device.link = nil
	ended := make(chan error, 1)
	go func() {
		l.rest() // it may be aborting
		ended <- l.card.Do(func() error { return errors.Join(l.leaveDirect(), l.leaveNCCL()) })
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

// rest ends the watchdog.
func (l *link) rest() {
	close(l.stop)
	l.tasks.Wait()
}

// leaveDirect gives back the memory that other cards write to, when they can't any more. Where that is not known, the memory is left.
func (l *link) leaveDirect() error {
	if l.direct == nil {
		return nil
	}
	err := l.direct.Disconnect()
	ctx, cancel := context.WithTimeout(context.Background(), parting)
	defer cancel()
	if l.Err() == nil && l.peers.Err() == nil && l.peers.Collective(ctx, ir.Collective{}, nil) == nil {
		return errors.Join(err, l.direct.Close())
	}
	l.device.left.add(l.direct)
	return err
}

// leaveNCCL ends the communicator. Others may be gone without a word, so that leaving properly could take forever.
func (l *link) leaveNCCL() error {
	if l.nccl == nil {
		return nil
	}
	if l.Err() != nil || l.peers.Err() != nil {
		return l.nccl.Abort()
	}
	return l.nccl.Destroy()
}

// leftovers are what cards of other ranks may still write to.
type leftovers struct {
	mu   sync.Mutex
	list []*peer.Comm
}

func (o *leftovers) add(c *peer.Comm) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, c)
}

// close gives them back, when all ranks have ended their links.
func (o *leftovers) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, c := range o.list {
		errs = append(errs, c.Close())
	}
	o.list = nil
	return errors.Join(errs...)
}
