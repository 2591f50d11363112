package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
)

// sumsInARow is how many all-reduces of the same memory a call makes, in one graph; as in torch_cards.py.
const sumsInARow = 10

// summer is a rank that sums, on a card of this process.
type summer struct {
	card   int
	group  comm.Comm
	dev    ir.Device
	peers  ir.Peers
	link   ir.Link
	memory ir.DeviceMemory
	sums   ir.Starter
}

// summers are all ranks.
type summers []*summer

// do lets all ranks do something at the same time. When one fails, nobody waits for it.
func (s summers) do(f func(*summer) error) error {
	errs := make([]error, len(s))
	var ranks sync.WaitGroup
	for i, r := range s {
		ranks.Go(func() {
			if errs[i] = f(r); errs[i] != nil {
				r.group.Abort(errs[i])
			}
		})
	}
	ranks.Wait()
	return errors.Join(errs...)
}

// openSummers links cards for sums of up to so many bytes.
func openSummers(ctx context.Context, cards int, most int64) (summers, error) {
	group, err := comm.NewLocal(cards)
	if err != nil {
		return nil, err
	}
	var s summers
	for i, c := range group {
		s = append(s, &summer{card: i, group: c})
	}
	err = s.do(func(r *summer) (err error) {
		if r.peers, err = comm.ForProgram(r.group, cards); err != nil {
			return err
		}
		if r.dev, err = cudaops.Open(r.card, 1); err != nil {
			return err
		}
		joiner, ok := r.dev.(ir.Joiner)
		if !ok {
			return fmt.Errorf("%v is no real card", r.dev)
		}
		r.link, err = joiner.Join(ctx, r.peers, most)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s summers) close() error {
	return s.do(func(r *summer) (err error) {
		if r.link != nil {
			err = r.link.Close()
		}
		if r.dev != nil {
			err = errors.Join(err, r.dev.Close())
		}
		return errors.Join(err, r.group.Close())
	})
}

// load prepares sums of so many bytes.
func (s summers) load(bytes int) error {
	var size [ir.NumRegions]int
	size[ir.Grads] = bytes / 4
	on := &ir.Slot{Region: ir.Grads, Name: "x", Shape: ir.Of(bytes / 4)}
	parts := slices.Repeat([]ir.Part{{Collective: &ir.Collective{Kind: ir.AllReduce}, On: on}}, sumsInARow)
	return s.do(func(r *summer) error {
		p, err := ir.Compile("sums", size, ir.Target{}, parts...)
		if err != nil {
			return err
		}
		if r.memory, err = r.dev.Alloc(int64(bytes)); err != nil {
			return err
		}
		e, err := r.dev.Load(p, [ir.NumRegions]ir.DeviceMemory{ir.Grads: r.memory})
		if err != nil {
			return err
		}
		r.sums = e.(ir.Starter)
		return nil
	})
}

func (s summers) unload() error {
	return s.do(func(r *summer) (err error) {
		if r.sums != nil {
			err = r.sums.Close()
		}
		if r.memory != nil {
			err = errors.Join(err, r.memory.Free())
		}
		r.sums, r.memory = nil, nil
		return err
	})
}

// contender makes the sums that are loaded.
func (s summers) contender(ctx context.Context, n int) (time.Duration, error) {
	start := time.Now()
	err := s.do(func(r *summer) (err error) {
		var last uint64
		for range n {
			if last, err = r.sums.Start(ctx, &ir.Runtime{Comm: r.peers}); err != nil {
				return err
			}
		}
		return r.sums.Wait(last, nil)
	})
	return time.Since(start), err
}

// cardsSums times all-reduces between all cards.
func cardsSums(ctx context.Context, b *bench) (err error) {
	sizes := []int{1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30}
	cards, err := severalCards()
	if err != nil {
		return err
	}
	ours, err := openSummers(ctx, cards, int64(slices.Max(sizes)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	peer, end, err := torchOnAll(ctx, b, cards)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, size := range sizes {
		if err := allReduce(ctx, b, ours, peer, size); err != nil {
			return fmt.Errorf("%s: %w", sizeName(size), err)
		}
	}
	return nil
}

// allReduce times sums of one size.
func allReduce(ctx context.Context, b *bench, ours summers, peer *torch, size int) (err error) {
	name := "all-reduce " + sizeName(size)
	b.log("%s: %s", b.suite, name)
	if err := ours.load(size); err != nil {
		return errors.Join(err, ours.unload())
	}
	defer func() { err = errors.Join(err, ours.unload()) }()
	took := func(t timing) row {
		return row{Workload: name, Mode: fmt.Sprintf("%d cards", len(ours)), Metric: "time", Value: 1e6 * t.seconds / sumsInARow, Unit: microseconds, spread: t.spread}
	}
	entrants := []entrant{{row: took, run: ours.contender}}
	if peer != nil {
		entrants = append(entrants, entrant{peer: torchPeer + " nccl", row: took, run: peer.onCards("allreduce", size, "nccl", "fp32")})
	}
	_, err = b.compare(ctx, entrants...)
	return err
}
