package cudaops

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/nccl"
	"github.com/tandem-train/tandem/cudaops/internal/peer"
	"github.com/tandem-train/tandem/internal/ir"
)

// Join implements [ir.Joiner].
func (d *realDevice) Join(ctx context.Context, peers ir.Peers, most int64) (ir.Link, error) {
	j := &joining{ctx: ctx, peers: peers, most: most, device: d}
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

// LinkVariable says how cards exchange: by "nccl" only, by "direct", which is by kernels of our own, or NCCL where they can't, or by "auto",
// which is whichever is faster for a size. Unset, it is auto.
const LinkVariable = "TANDEM_CUDA_LINK"

// joining is a call of Join. Ranks tell each other how they do after every step that may fail, so that all of them get a way or none does.
type joining struct {
	ctx    context.Context
	peers  ir.Peers
	most   int64
	device *realDevice
}

// What ranks tell each other.
const (
	well = iota
	sameCard
	noKernel
	noAccess
	wrongBytes
	noLibrary
	otherVersion
	noCommunicator
	wrongBytesByNCCL
	noTest
)

var troubles = map[uint32]string{
	sameCard:         "it shares its card with a rank before it, and a card can't wait for itself",
	noKernel:         "its card can't take part in exchanges over each other's memory",
	noAccess:         "its card does not reach the other cards' memory",
	wrongBytes:       "known bytes do not come through the cards' memory as they were sent: is the machine's IOMMU or PCI ACS on?",
	noLibrary:        "NCCL (libnccl.so.2) is not found: install it, or name its folder in TANDEM_CUDA_PATH",
	otherVersion:     "its NCCL has another version than rank 0's: let all ranks find the same",
	noCommunicator:   "NCCL does not work there: NCCL_DEBUG=WARN tells why",
	noTest:           "it can't test the exchange",
	wrongBytesByNCCL: "known bytes do not come through NCCL as they were sent: is the machine's IOMMU or PCI ACS on? NCCL_P2P_DISABLE=1 takes another way",
}

// join finds the ways in which the cards can exchange. Without any, what NCCL lacks is the reason: it is what serves most machines.
func (j *joining) join() (*link, error) {
	how := os.Getenv(LinkVariable)
	if !slices.Contains([]string{"", "auto", "nccl", "direct"}, how) {
		return nil, fmt.Errorf("%s is %q: it takes nccl, direct or auto", LinkVariable, how)
	}
	if err := j.apart(); err != nil {
		return nil, err
	}
	if err := j.device.cuda.Do(j.device.left.close); err != nil {
		return nil, err
	}
	var w ways
	var noDirect, noNCCL *ir.UnlinkedError
	var err error
	if how != "nccl" {
		if w.direct, err = j.openDirect(); err != nil && !errors.As(err, &noDirect) {
			return nil, err
		}
	}
	// NCCL is opened only where it serves: a communicator takes half a second to make.
	if w.direct == nil || how != "direct" && j.most > mostDirect(j.peers.Size()) {
		if w.nccl, err = j.openNCCL(); err != nil && !errors.As(err, &noNCCL) {
			return nil, errors.Join(err, j.leave(w))
		}
	}
	switch {
	case w.nccl == nil && w.direct == nil:
		return nil, noNCCL
	case noNCCL != nil:
		w.note = fmt.Sprintf("large gradients would go faster by NCCL: rank %d: %s", noNCCL.Rank, noNCCL.Why)
	case noDirect != nil:
		w.note = fmt.Sprintf("small gradients would go faster over the cards' memory: rank %d: %s", noDirect.Rank, noDirect.Why)
	}
	return newLink(j.device, w, j.peers)
}

// openDirect connects the cards' memory, and tests that.
func (j *joining) openDirect() (*peer.Comm, error) {
	world, rank := j.peers.Size(), j.peers.Rank()
	words := peer.AddressBytes / 4
	all := make([]uint32, world*words)
	var comm *peer.Comm
	own := j.device.cuda.Do(func() error {
		var err error
		if comm, err = peer.Open(j.device.cuda, rank, world, j.most); err != nil {
			return err
		}
		a, err := comm.Address()
		copy(ir.Bytes(all[rank*words:]), a.Encode(nil))
		return err
	})
	if err := j.agree(noKernel, own); err != nil {
		return nil, j.leaveDirect(comm, err)
	}
	if err := j.gather(all); err != nil {
		return nil, j.leaveDirect(comm, err)
	}
	own = j.device.cuda.Do(func() error {
		addresses := make([]peer.Address, world)
		for r := range addresses {
			var err error
			if addresses[r], err = peer.Decode(ir.Bytes(all[r*words:][:words])); err != nil {
				return err
			}
		}
		return comm.Connect(addresses)
	})
	if err := j.agree(noAccess, own); err != nil {
		return nil, j.leaveDirect(comm, err)
	}
	if err := j.test(ways{direct: comm}, wrongBytes); err != nil {
		return nil, j.leaveDirect(comm, err)
	}
	return comm, nil
}

// leaveDirect gives back the direct way, which is not taken because of err, and adds to that what goes wrong. c may be nil. Other cards may reach its
// memory until their ranks are here, too, which they are when they have agreed on err. Where that is not known, the memory is left.
func (j *joining) leaveDirect(c *peer.Comm, err error) error {
	if c != nil {
		err = errors.Join(err, j.device.cuda.Do(c.Disconnect))
	}
	var agreed *ir.UnlinkedError
	alone := errors.As(err, &agreed) && j.gather(make([]uint32, j.peers.Size())) == nil
	switch {
	case c == nil:
	case alone:
		err = errors.Join(err, j.device.cuda.Do(c.Close))
	default:
		j.device.left.add(c)
	}
	return err
}

// openNCCL makes a communicator, and tests it.
func (j *joining) openNCCL() (*nccl.Comm, error) {
	lib, missing := nccl.Open()
	versions := make([]uint32, j.peers.Size()) // that the ranks have found, 0 for none
	if missing == nil {
		versions[j.peers.Rank()] = uint32(lib.Version())
	}
	if err := j.gather(versions); err != nil {
		return nil, err
	}
	for r, v := range versions {
		switch v {
		case 0:
			return nil, j.trouble(r, noLibrary, missing)
		case versions[0]:
		default:
			return nil, j.trouble(r, otherVersion, nil)
		}
	}
	var id nccl.ID
	var own error
	if j.peers.Rank() == 0 {
		id, own = lib.NewID()
	}
	if err := j.agree(noCommunicator, own); err != nil {
		return nil, err
	}
	if err := j.peers.Collective(j.ctx, ir.Collective{Kind: ir.BroadcastFrom}, ir.Words[float32](id.Bytes())); err != nil {
		return nil, err
	}
	comm, own := j.initialize(lib, id)
	w := ways{nccl: comm}
	if err := j.agree(noCommunicator, own); err != nil {
		return nil, errors.Join(err, j.leave(w))
	}
	if err := j.test(w, wrongBytesByNCCL); err != nil {
		return nil, errors.Join(err, j.leave(w))
	}
	return comm, nil
}

// test moves known bytes in one way.
func (j *joining) test(w ways, wrong uint32) error {
	l, err := newLink(j.device, w, j.peers)
	if err != nil {
		return err
	}
	known, own := l.prepareTest()
	err = j.agree(noTest, own) // before some of the ranks wait for what another one can't send
	if err == nil {
		own = l.test(known)
	}
	ended := l.card.Do(func() error { return known.free(l.card) }) // which may wait for the card, that the watchdog looks after
	l.rest()
	ended = errors.Join(ended, l.card.Do(func() error { return l.card.EventDestroy(l.done) }))
	if err != nil {
		return errors.Join(err, ended)
	}
	own = errors.Join(own, ended)
	if !errors.Is(own, errWrongBytes) {
		wrong = noTest
	}
	return j.agree(wrong, own)
}

// leave gives back a way that is not used. A rank that has not agreed has put nothing in it.
func (j *joining) leave(w ways) error {
	return j.device.cuda.Do(func() error {
		var errs []error
		if w.direct != nil {
			errs = append(errs, w.direct.Disconnect())
			j.device.left.add(w.direct)
		}
		if w.nccl != nil {
			errs = append(errs, w.nccl.Abort())
		}
		return errors.Join(errs...)
	})
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

// apart finds ranks that share a card. Ranks that have come here have all ended the links that they had before.
func (j *joining) apart() error {
	const words = 4 // of a sum that stands for a card's UUID
	all := make([]uint32, words*j.peers.Size())
	card := func(r int) []uint32 { return all[words*r:][:words] }
	own := sha256.Sum256([]byte(j.device.card.info.props.UUID))
	copy(ir.Bytes(card(j.peers.Rank())), own[:])
	if err := j.gather(all); err != nil {
		return err
	}
	for r := range j.peers.Size() {
		for before := range r {
			if slices.Equal(card(r), card(before)) {
				return j.trouble(r, sameCard, nil)
			}
		}
	}
	return nil
}

// agree tells the others whether this rank is in a trouble, for a reason of its own, and hears how they do. The error is that of the first
// rank that is in one.
func (j *joining) agree(trouble uint32, own error) error {
	words := make([]uint32, j.peers.Size())
	if own != nil {
		words[j.peers.Rank()] = trouble
	}
	if err := j.gather(words); err != nil {
		return errors.Join(err, own)
	}
	for r, state := range words {
		if state != well {
			return j.trouble(r, state, own)
		}
	}
	return nil
}

// trouble is a rank's. own is what this rank knows of its own.
func (j *joining) trouble(r int, state uint32, own error) *ir.UnlinkedError {
	e := &ir.UnlinkedError{Rank: r, Why: troubles[state]}
	if r == j.peers.Rank() && own != nil {
		e.Why += fmt.Sprintf(" (%v)", own)
	}
	return e
}

// gather gives every rank every rank's words, of which each has the same number.
func (j *joining) gather(words []uint32) error {
	return j.peers.Collective(j.ctx, ir.Collective{Kind: ir.AllGather}, ir.Words[float32](ir.Bytes(words)))
}

var errWrongBytes = errors.New("they differ")

// testWords is what each rank sends to all others in the test of a new link.
const testWords = 16 << 10

// knownBytes are what the test of a link moves.
type knownBytes struct {
	at     cuda.Ptr
	staged cuda.Pinned
}

// free gives the memory back, also where it was not taken, or something is on its way.
func (k knownBytes) free(c *cuda.Card) error {
	errs := []error{c.StreamSynchronize(c.Stream)}
	if k.at != 0 {
		errs = append(errs, c.API.MemFree(k.at))
	}
	if k.staged != (cuda.Pinned{}) {
		errs = append(errs, c.MemFreeHost(k.staged))
	}
	return errors.Join(errs...)
}

// known is word i of what a rank sends, the bits of a small float32.
func known(rank, i int) uint32 { return uint32(rank+1)<<20 | uint32(i) }

// prepareTest puts what this rank sends on the card. The memory is not from the caching allocator: so little, for so short, is not refused for a
// cap's sake. What that has cached makes room for it.
func (l *link) prepareTest() (k knownBytes, err error) {
	c, n := l.card, 4*testWords*l.peers.Size()
	err = c.Do(func() (err error) {
		if err := c.MemTrim(); err != nil {
			return err
		}
		if k.at, err = c.API.MemAlloc(int64(n)); err != nil {
			return err
		}
		staged, err := c.MemHostAlloc(n)
		if err != nil {
			return err
		}
		k.staged = staged
		words := ir.Words[uint32](staged.Bytes())
		clear(words)
		rank := l.peers.Rank()
		for i := range testWords {
			words[rank*testWords+i] = known(rank, i)
		}
		return c.MemcpyHtoD(k.at, staged, 0, n, c.Stream)
	})
	return k, err
}

// test moves known bytes from every card to every other one.
func (l *link) test(k knownBytes) error {
	c, world := l.card, l.peers.Size()
	return c.Do(func() error {
		l.Begin()
		err := l.Put(c.Stream, []exec.Collective{{Collective: ir.Collective{Kind: ir.AllGather}, At: k.at, N: testWords * world}}, false)
		if err = errors.Join(err, l.End(c.Stream)); err != nil {
			return err
		}
		if err := c.MemcpyDtoH(k.staged, 0, k.at, 4*testWords*world, c.Stream); err != nil {
			return err
		}
		if err := c.StreamSynchronize(c.Stream); err != nil {
			return err
		}
		if err := l.Err(); err != nil {
			return err
		}
		words := ir.Words[uint32](k.staged.Bytes())
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
