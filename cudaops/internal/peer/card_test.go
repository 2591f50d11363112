package peer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/nccl"
	"github.com/tandem-train/tandem/cudaops/internal/peer"
	"github.com/tandem-train/tandem/internal/ir"
)

// machine is a rank for each card of the machine, or two on its only one: what blocks tell each other is the same there.
func machine(t *testing.T) (api *cuda.API, world int) {
	t.Helper()
	api, err := cuda.Load()
	if err != nil {
		t.Skipf("no card: %v", err)
	}
	return api, max(cards(t, api), 2)
}

// TestCardCollectives is TestCollectives on all cards of the machine. Under compute-sanitizer -short is what there is time for.
func TestCardCollectives(t *testing.T) {
	api, world := machine(t)
	sizes := []int{1, 2, 31, 1000, 4096, 4097, 100_003, 262_144, 669_706, 3_000_001, 9_000_000}
	if testing.Short() {
		sizes = []int{31, 4097, 500_003}
	}
	onRanks(t, api, world, 1<<20, together, func(r *rank) error { return r.collectives(sizes...) })
}

// TestCardSpeed logs how long all-reduces take in a graph, here and by NCCL.
func TestCardSpeed(t *testing.T) {
	api, world := machine(t)
	var id nccl.ID
	l, err := nccl.Open()
	if err == nil && cards(t, api) == world {
		if id, err = l.NewID(); err != nil {
			t.Fatal(err)
		}
	}
	onRanks(t, api, world, 1<<30, together, func(r *rank) error {
		const most = 256 << 20 // numbers
		at, err := r.card.MemAlloc(4 * most)
		if err != nil {
			return err
		}
		if err := r.card.MemsetD8(at, 0, 4*most, r.card.Stream); err != nil {
			return err
		}
		var comm *nccl.Comm
		if id != (nccl.ID{}) {
			if comm, err = l.Init(id, r.rank, world); err != nil {
				return err
			}
		}
		put := func(n int, k ir.CollectiveKind) error {
			return r.comm.Put(r.card.Stream, r.early(), peer.Collective{Collective: ir.Collective{Kind: k}, At: at, N: n})
		}
		putNCCL := func(n int, k ir.CollectiveKind) error {
			switch k {
			case ir.ReduceTo:
				return comm.Reduce(at, at, n, 0, r.card.Stream)
			case ir.BroadcastFrom:
				return comm.Broadcast(at, at, n, 0, r.card.Stream)
			}
			return comm.AllReduce(at, at, n, r.card.Stream)
		}
		for _, n := range []int{1, 256, 4 << 10, 64 << 10, 256 << 10, 669_706, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20, most} {
			// One way is how fast numbers go; there and back, how soon they are there.
			for _, kinds := range [][]ir.CollectiveKind{{ir.AllReduce}, {ir.ReduceTo}, {ir.BroadcastFrom}, {ir.ReduceTo, ir.BroadcastFrom}} {
				all := func(put func(int, ir.CollectiveKind) error) func() error {
					return func() (err error) {
						for _, k := range kinds {
							err = errors.Join(err, put(n, k))
						}
						return err
					}
				}
				own, err := r.timed(all(put))
				var its time.Duration
				if err == nil && comm != nil {
					its, err = r.timed(all(putNCCL))
				}
				if err != nil {
					return err
				}
				if r.rank == 0 {
					t.Logf("%v of %d bytes: %v, %.1f GB/s; NCCL %v", kinds, 4*n, own, 4*float64(n)/own.Seconds()/1e9, its)
				}
			}
		}
		if comm != nil {
			err = comm.Destroy()
		}
		return errors.Join(err, r.card.MemFree(at))
	})
}

// timed is how long a call's work takes when it is repeated in a graph.
func (r *rank) timed(f func() error) (took time.Duration, err error) {
	const inGraph, launches = 20, 5
	s := r.card.Stream
	if err := errors.Join(f(), r.card.StreamSynchronize(s)); err != nil { // NCCL makes its connections
		return 0, err
	}
	made, err := r.card.Capture(s, func() (err error) {
		for range inGraph {
			err = errors.Join(err, f())
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := errors.Join(r.card.GraphLaunch(made, s), r.card.StreamSynchronize(s)); err != nil {
		return 0, err
	}
	r.meet()
	start := time.Now()
	for range launches {
		err = errors.Join(err, r.card.GraphLaunch(made, s))
	}
	err = errors.Join(err, r.card.StreamSynchronize(s))
	took = time.Since(start) / (inGraph * launches)
	return took, errors.Join(err, r.card.GraphExecDestroy(made))
}
