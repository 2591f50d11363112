package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	stdnet "net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/job"
)

func init() {
	register(suite{"collectives", "all-reduce between two processes of this host, beside goroutines and beside copying", []workload{
		{"latency", "1 KB to 64 KB", func(ctx context.Context, b *bench) error {
			return allReduces(ctx, b, 1<<10, 4<<10, 16<<10, 64<<10)
		}},
		{"bandwidth", "256 KB to 256 MB", func(ctx context.Context, b *bench) error {
			return allReduces(ctx, b, 256<<10, 1<<20, 4<<20, 16<<20, 64<<20, 256<<20)
		}},
	}})
}

// peerVariable marks a process of this program that is rank 1 of a measured group.
const peerVariable = "TANDEM_BENCH_PEER"

// order is what rank 0 tells the other rank to do: times all-reduces of elements; none ends it. It travels in a collective.
type order [2]int32

func (o *order) floats() []float32 {
	return ir.Words[float32](ir.Bytes(o[:]))
}

// allReduces times sums of buffers of some sizes in bytes. The smallest of the times that a message takes is what its bytes take to be
// copied once, which is the limit here.
func allReduces(ctx context.Context, b *bench, sizes ...int) (err error) {
	far, end, err := twoProcesses(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	near, err := comm.NewLocal(2)
	if err != nil {
		return err
	}
	largest := sizes[len(sizes)-1] / 4
	mine, theirs := ones(largest), ones(largest)
	for _, size := range sizes {
		name := "all-reduce " + sizeName(size)
		b.log("%s: %s", b.suite, name)
		x, y := mine[:size/4], theirs[:size/4]
		took := func(mode string) func(t timing) row {
			return func(t timing) row {
				if size >= 1<<20 {
					return speed(name, mode, "bandwidth", float64(size)/1e9, "GB/s", t)
				}
				return row{Workload: name, Mode: mode, Metric: "time", Value: 1e6 * t.seconds, Unit: microseconds, spread: t.spread}
			}
		}
		_, err := b.compare(ctx,
			entrant{row: took("2 ranks, processes"), run: steered(far, x)},
			entrant{peer: "goroutines", row: took("2 ranks"), run: paired(near, x, y)},
			entrant{peer: "memory copy", limit: true, row: took("2 ranks"), run: calls(func() error { copy(y, x); return nil })},
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// steered makes calls of rank 0 that the other process follows.
func steered(c comm.Comm, x []float32) contender {
	return func(ctx context.Context, n int) (_ time.Duration, err error) {
		o := order{int32(len(x)), int32(n)}
		if err := c.Broadcast(ctx, o.floats(), 0); err != nil {
			return 0, err
		}
		return calls(func() error { return c.AllReduce(ctx, x) })(ctx, n)
	}
}

// paired makes the same calls on two ranks of this process.
func paired(group []comm.Comm, x, y []float32) contender {
	return func(ctx context.Context, n int) (took time.Duration, err error) {
		var other error
		var rank sync.WaitGroup
		rank.Go(func() {
			for range n {
				if other = group[1].AllReduce(ctx, y); other != nil {
					return
				}
			}
		})
		took, err = calls(func() error { return group[0].AllReduce(ctx, x) })(ctx, n)
		rank.Wait()
		return took, errors.Join(err, other)
	}
}

// twoProcesses starts this program as rank 1 of a group and returns the end of rank 0, and what ends both.
func twoProcesses(ctx context.Context) (c comm.Comm, end func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, nil, err
	}
	place := job.Place{Rank: 1, World: 2, LocalRank: 1, LocalWorld: 2, Nodes: 1, Addr: "127.0.0.1", Port: port, Token: rand.Text(), ListenFD: -1}
	other := exec.CommandContext(ctx, self)
	other.Env = append(os.Environ(), append(place.Environ(), peerVariable+"=1", "GOMAXPROCS=1")...)
	var said bytes.Buffer
	other.Stderr = &said
	if err := other.Start(); err != nil {
		return nil, nil, err
	}
	place.Rank, place.LocalRank = 0, 0
	session, c, err := enter(ctx, &place)
	if err != nil {
		return nil, nil, errors.Join(err, other.Process.Kill(), other.Wait())
	}
	return c, func() error {
		var stop order
		err := errors.Join(c.Broadcast(ctx, stop.floats(), 0), c.Close(), session.Close())
		if e := other.Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("rank 1: %w: %s", e, bytes.TrimSpace(said.Bytes())))
		}
		return err
	}, nil
}

// enter joins the group of a place.
func enter(ctx context.Context, place *job.Place) (*comm.Session, comm.Comm, error) {
	session, err := comm.Connect(ctx, place)
	if err != nil {
		return nil, nil, err
	}
	c, err := session.NewGroup(ctx, nil)
	if err != nil {
		return nil, nil, errors.Join(err, session.Close())
	}
	return session, c, nil
}

// follow is what rank 1 does: rank 0's orders, until there are no more.
func follow(ctx context.Context) error {
	place, err := job.Lookup(os.LookupEnv)
	if err != nil {
		return err
	}
	if place == nil {
		return fmt.Errorf("%s is set, but this process has no rank", peerVariable)
	}
	session, c, err := enter(ctx, place)
	if err != nil {
		return err
	}
	var x []float32
	for {
		var o order
		if err := c.Broadcast(ctx, o.floats(), 0); err != nil {
			return err
		}
		if o[1] == 0 {
			return errors.Join(c.Close(), session.Close())
		}
		if len(x) < int(o[0]) {
			x = ones(int(o[0]))
		}
		for range o[1] {
			if err := c.AllReduce(ctx, x[:o[0]]); err != nil {
				return err
			}
		}
	}
}

// freePort is a port that nobody listens at. Somebody may take it before we do; then measuring fails, and says so.
func freePort(ctx context.Context) (int, error) {
	l, err := new(stdnet.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	_, port, err := stdnet.SplitHostPort(l.Addr().String())
	if err = errors.Join(err, l.Close()); err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// ones are n numbers in memory that is there: sums of them grow to infinity, which takes no longer to add.
func ones(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// sizeName writes a size that is a power of two.
func sizeName(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%d MB", bytes>>20)
	}
	return fmt.Sprintf("%d KB", bytes>>10)
}
