package main

import (
	"context"
	"slices"
	"strconv"
	"time"
)

// cardsModes are the modes of PyTorch on several cards.
var cardsModes = []string{"dp", "ddp", "ddp-compile", "ddp-graph", "zero1"}

// torchOnAll starts PyTorch on all cards, where it is wanted, and gives what ends it.
func torchOnAll(ctx context.Context, b *bench, cards int) (peer *torch, end func() error, err error) {
	if !b.wants(torchPeer) {
		return nil, func() error { return nil }, nil
	}
	if peer, err = b.startTorch(ctx, torchOnCards, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", strconv.Itoa(cards)); err != nil {
		return nil, nil, err
	}
	if version := "PyTorch " + peer.version; !slices.Contains(b.about, version) {
		b.about = append(b.about, version)
	}
	return peer, peer.close, nil
}

// onCards is work that PyTorch does on all cards.
func (t *torch) onCards(workload string, size int, mode, precision string) contender {
	return func(ctx context.Context, n int) (time.Duration, error) {
		a, err := t.ask(ctx, `{"workload": %q, "size": %d, "mode": %q, "precision": %q, "calls": %d}`, workload, size, mode, precision, n)
		return time.Duration(a.Seconds * float64(time.Second)), err
	}
}
