package peer_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/cudaops/internal/peer"
	"github.com/tandem-train/tandem/internal/ir"
)

func TestMain(m *testing.M) { fakecuda.Main(m) }

// rank is one of several of this process, each with a card.
type rank struct {
	rank, world int
	card        *cuda.Card
	comm        *peer.Comm
	meet        func() // waits until all ranks do
}

// early is whether kernels can be launched before the one before them is done.
func (r *rank) early() bool { return r.card.Major >= 9 }

// apart makes ranks take each other for other processes.
func apart(a []peer.Address, own int) []peer.Address {
	a = slices.Clone(a)
	for r := range a {
		if r != own {
			a[r].Process[0]++
		}
	}
	return a
}

// together leaves them as they are.
func together(a []peer.Address, _ int) []peer.Address { return a }

// cards is how many there are.
func cards(t *testing.T, api *cuda.API) int {
	t.Helper()
	n, err := api.DeviceCount()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// onRanks connects so many ranks, on one card after the other, and runs f for each, in a goroutine of its own on its card's thread.
func onRanks(t *testing.T, api *cuda.API, world int, most int64, as func([]peer.Address, int) []peer.Address, f func(r *rank) error) {
	t.Helper()
	errs, addresses, comms := make([]error, world), make([]peer.Address, world), make([]*peer.Comm, world)
	var all sync.WaitGroup
	turnstile, n := newTurnstile(world), cards(t, api)
	for i := range world {
		all.Go(func() {
			defer turnstile.leave()
			card, err := api.OpenCard(i % n)
			if err != nil {
				errs[i] = err
				return
			}
			errs[i] = errors.Join(card.Do(func() error {
				r := &rank{rank: i, world: world, card: card, meet: turnstile.meet}
				if r.comm, err = peer.Open(card, i, world, most); err != nil {
					return err
				}
				comms[i] = r.comm
				if addresses[i], err = r.comm.Address(); err != nil {
					return err
				}
				r.meet()
				err := r.comm.Connect(as(addresses, i))
				r.meet()
				if err == nil {
					err = f(r)
				}
				if err != nil { // nobody shall wait for this one
					for _, c := range comms {
						c.Stop()
					}
				}
				err = errors.Join(err, card.StreamSynchronize(card.Stream), r.comm.Disconnect())
				r.meet()
				return errors.Join(err, r.comm.Close())
			}), card.Close())
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// turnstile is where all that have not left meet.
type turnstile struct {
	mu            sync.Mutex
	changed       sync.Cond
	there, of, no int
}

func newTurnstile(n int) *turnstile {
	s := &turnstile{of: n}
	s.changed.L = &s.mu
	return s
}

func (s *turnstile) meet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there++
	turn := s.no
	s.turn()
	for s.no == turn {
		s.changed.Wait()
	}
}

func (s *turnstile) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of--
	s.turn()
}

func (s *turnstile) turn() {
	if s.there == s.of {
		s.there = 0
		s.no++
		s.changed.Broadcast()
	}
}

// collectives does every kind of collective, by itself and beside a smaller one, on buffers of many sizes and places, several in a row, and
// compares each with the same sums in the order of ranks, bit by bit, and what lies around the buffer with what was there.
func (r *rank) collectives(sizes ...int) error {
	const around = 8
	most := slices.Max(sizes) + 2*around
	at, err := r.card.MemAlloc(int64(2 * 4 * most))
	if err != nil {
		return err
	}
	staged, err := r.card.MemHostAlloc(2 * 4 * most)
	if err != nil {
		return err
	}
	alone := []ir.Collective{
		{Kind: ir.AllReduce}, {Kind: ir.ReduceTo, Root: r.world - 1}, {Kind: ir.BroadcastFrom, Root: 0}, {Kind: ir.ReduceScatter}, {Kind: ir.AllGather}, {Kind: ir.BroadcastFrom, Root: 1},
	}
	var groups [][]ir.Collective
	for k, op := range alone {
		groups = append(groups, alone[k:k+1], []ir.Collective{op, alone[(k+1)%len(alone)]})
	}
	for _, n := range sizes {
		for k, group := range groups {
			if err := r.group(at, staged, n, k, around, group); err != nil {
				return fmt.Errorf("rank %d: %d collectives of up to %d: %w", r.rank, len(group), n, err)
			}
		}
	}
	return errors.Join(r.card.MemFree(at), r.card.MemFreeHost(staged))
}

// group does a group of collectives: on n numbers, and on about a third of that.
func (r *rank) group(at cuda.Ptr, staged cuda.Pinned, n, k, around int, group []ir.Collective) error {
	s := r.card.Stream
	all := ir.Words[float32](staged.Bytes())
	var list []peer.Collective
	var mine [][]float32
	var first []int
	end := 0
	for i, op := range group {
		n := n / (1 + 2*i)
		skip := around - k%3 // one place in three is on a boundary of vectors
		x := values(r.rank, n, k+i, n+2*around)
		copy(all[end:], x)
		list = append(list, peer.Collective{Collective: op, At: at + cuda.Ptr(4*(end+skip)), N: n})
		mine, first = append(mine, x), append(first, end)
		end += (len(x) + 3) &^ 3
	}
	if err := errors.Join(
		r.card.MemcpyHtoD(at, staged, 0, 4*end, s),
		r.comm.Put(s, r.early() && k%2 == 0, list...),
		r.card.MemcpyDtoH(staged, 0, at, 4*end, s),
		r.card.StreamSynchronize(s)); err != nil {
		return err
	}
	for i, c := range list {
		skip := around - k%3
		for e, want := range r.want(c.Collective, c.N, k+i, skip, mine[i]) {
			if got := all[first[i]+e]; math.Float32bits(got) != math.Float32bits(want) && !math.IsNaN(float64(want)) {
				return fmt.Errorf("%v of %d: element %d is %v, want %v", c.Kind, c.N, e-skip, got, want)
			}
		}
	}
	return nil
}

// values are what a rank has for collective k on n.
func values(rank, n, k, count int) []float32 {
	rng := rand.New(rand.NewPCG(uint64(rank), uint64(n*10+k)))
	x := make([]float32, count)
	for i := range x {
		x[i] = rng.Float32() - 0.5
	}
	return x
}

// want is what a rank's numbers should be after a collective on n of them, from skip; NaN where they may be anything.
func (r *rank) want(op ir.Collective, n, k, skip int, mine []float32) []float32 {
	all := make([][]float32, r.world)
	for i := range all {
		all[i] = values(i, n, k, len(mine))
	}
	want := slices.Clone(mine)
	for i := skip; i < skip+n; i++ {
		sum := all[0][i]
		for _, x := range all[1:] {
			sum += x[i]
		}
		share := (n + r.world - 1) / r.world
		owner := (i - skip) / share
		switch {
		case op.Kind == ir.AllReduce, op.Kind == ir.ReduceTo && op.Root == r.rank, op.Kind == ir.ReduceScatter && owner == r.rank:
			want[i] = sum
		case op.Kind == ir.ReduceScatter:
			want[i] = float32(math.NaN())
		case op.Kind == ir.BroadcastFrom:
			want[i] = all[op.Root][i]
		case op.Kind == ir.AllGather:
			want[i] = all[owner][i]
		}
	}
	return want
}

// TestCollectives runs the kernel on the host, between three ranks.
func TestCollectives(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024, 1024}, Kernels: true}) {
		return
	}
	api, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}
	onRanks(t, api, 3, 1<<20, together, func(r *rank) error { return r.collectives(1, 2, 31, 1000, 20_001, 700_000) })
	onRanks(t, api, 4, 1<<20, together, func(r *rank) error { return r.collectives(1000) }) // two on one card
	onRanks(t, api, 2, 1<<20, apart, func(r *rank) error { return r.collectives(31, 100_003) })
	calls := fakecuda.Calls(t)
	if opened, closed := fakecuda.Count(calls, "cuIpcOpenMemHandle_v2"), fakecuda.Count(calls, "cuIpcCloseMemHandle"); opened != 2 || closed != 2 {
		t.Errorf("%d handles were opened and %d closed, want 2 and 2", opened, closed)
	}
}
