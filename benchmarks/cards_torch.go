package main

import (
	"context"
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

//go:embed peers/torch_cards.py
var torchOnCards string

// cardsModes are the modes of PyTorch on several cards.
var cardsModes = []string{"dp", "ddp", "ddp-compile", "ddp-graph", "zero1"}

// torchOnAll starts PyTorch on all cards, where it is wanted, and gives what ends it.
func torchOnAll(ctx context.Context, b *bench, cards int) (peer *torch, end func() error, err error) {
	if !b.wants(torchPeer) {
		return nil, func() error { return nil }, nil
	}
	script, err := torchScript()
	if err != nil {
		return nil, nil, err
	}
	remove := func() error { return os.RemoveAll(filepath.Dir(script)) }
	if peer, err = serveTorch(ctx, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", strconv.Itoa(cards), script, "--serve"); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	if version := "PyTorch " + peer.version; !slices.Contains(b.about, version) {
		b.about = append(b.about, version)
	}
	return peer, func() error { return errors.Join(peer.close(), remove()) }, nil
}

// onCards is work that PyTorch does on all cards.
func (t *torch) onCards(workload string, size int, mode, precision string) contender {
	return func(ctx context.Context, n int) (time.Duration, error) {
		a, err := t.ask(ctx, `{"workload": %q, "size": %d, "mode": %q, "precision": %q, "calls": %d}`, workload, size, mode, precision, n)
		return time.Duration(a.Seconds * float64(time.Second)), err
	}
}

// torchScript writes the peer's script, which torchrun wants as a file, in a folder of its own.
func torchScript() (string, error) {
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return "", err
	}
	script := filepath.Join(dir, "torch_cards.py")
	if err := os.WriteFile(script, []byte(torchOnCards), 0o600); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return script, nil
}
