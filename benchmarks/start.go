package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/nn"
)

// startVariable marks a process of this program whose first step is waited for, and says what it trains.
const startVariable = "TANDEM_BENCH_CARD_START"

// The metrics of a start.
const (
	startToStep = "start to first step"
	peakMemory  = "peak memory"
)

// stepsAfter is how many steps such a process makes after the first, by which its memory has reached its peak.
const stepsAfter = 10

// started is a line that such a process prints: one after the first step, one at the end.
type started struct {
	Memory int64 `json:"memory"` // the most that was in use on the card, in bytes; 0 in the first line
}

// takeStart is what such a process does.
func takeStart(ctx context.Context, stdout io.Writer) (err error) {
	var c cardCase
	var precision string
	if _, err := fmt.Sscan(os.Getenv(startVariable), &c.name, &c.batch, &precision); err != nil {
		return fmt.Errorf("%s: %w", startVariable, err)
	}
	if c.precision, err = nn.ParsePrecision(precision); err != nil {
		return err
	}
	t, err := c.trainer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	x, y := cardNets[c.name].samples(c.batch)
	if _, err := t.Step(ctx, x, y); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, "{}"); err != nil {
		return err
	}
	for range stepsAfter {
		if _, err := t.Step(ctx, x, y); err != nil {
			return err
		}
	}
	peak, err := cudaops.MaxMemoryAllocated(0)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(started{peak})
}

// starter is one of those whose start is timed.
type starter struct {
	peer   string // "" for ours
	argv   []string
	env    string
	took   []float64 // seconds
	memory int64
}

// start runs it once.
func (s *starter) start(ctx context.Context) (took time.Duration, memory int64, err error) {
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	cmd.Env = append(os.Environ(), s.env)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	lines := 0
	var last started
	for in := bufio.NewScanner(out); in.Scan(); lines++ {
		if lines == 0 {
			took = time.Since(begin)
		}
		err = errors.Join(err, json.Unmarshal(in.Bytes(), &last))
	}
	err = errors.Join(cmd.Wait(), err)
	if err == nil && lines != 2 {
		err = fmt.Errorf("%d lines, want 2", lines)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w: %s", s.argv[0], err, bytes.TrimSpace(said.Bytes()))
	}
	return took, last.Memory, nil
}

// cardStarts times the starts of processes that make a step, ours and PyTorch's in its modes in turn, and notes the peaks of their memory.
// The first of ours, which may have kernels to compile, does not count.
func cardStarts(ctx context.Context, b *bench) error {
	if err := needCard(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, c := range cardCases {
		b.log("%s: start of %s, batch %d, %v", b.suite, c.name, c.batch, c.precision)
		all := []*starter{{argv: []string{self}, env: fmt.Sprintf("%s=%s %d %v", startVariable, c.name, c.batch, c.precision)}}
		if _, _, err := all[0].start(ctx); err != nil {
			return err
		}
		if b.wants(torchPeer) {
			script, err := b.script(torchOnCard)
			if err != nil {
				return err
			}
			for _, mode := range c.modes(b) {
				request := fmt.Sprintf(`{"workload": %q, "size": %d, "mode": %q, "precision": %q, "steps": %d}`, c.name, c.batch, mode, c.precision, stepsAfter)
				all = append(all, &starter{peer: torchPeer + " " + mode, argv: []string{"python3", script, "--once", request}})
			}
		}
		for range min(b.runs, 3) {
			for _, s := range all {
				took, memory, err := s.start(ctx)
				if err != nil {
					return err
				}
				s.took = append(s.took, took.Seconds())
				s.memory = max(s.memory, memory)
			}
		}
		b.add(c.startRows(all)...)
	}
	return nil
}

// startRows are ours beside each peer, then the peers' own.
func (c cardCase) startRows(all []*starter) []row {
	mode := c.precision.String()
	first := func(s *starter) row {
		r := stepTime(c.name, c.batch, mode, summarize(s.took))
		r.Metric = startToStep
		return r
	}
	memory := func(s *starter) row {
		return row{Workload: c.name, Batch: &c.batch, Mode: mode, Metric: peakMemory, Value: math.Round(float64(s.memory) / (1 << 20)), Unit: mebibytes}
	}
	var rows []row
	for _, make := range []func(*starter) row{first, memory} {
		ours, peers := make(all[0]), all[1:]
		if len(peers) == 0 {
			rows = append(rows, ours)
		}
		for _, p := range peers {
			rows = append(rows, ours.against(p.peer, make(p).Value))
		}
		for _, p := range peers {
			rows = append(rows, make(p).by(p.peer))
		}
	}
	return rows
}
