package dp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/ir"
)

// joins is a device that can be linked, or says why not. Its programs go by the host all the same.
type joins struct {
	ir.Device
	state *linkage
}

// linkage is what the devices of a test have in common.
type linkage struct {
	unlinked      *ir.UnlinkedError
	torn          atomic.Pointer[error] // what has cut links off
	fail          atomic.Bool           // the next run of rank 1
	joined, ended atomic.Int32
	exchanges     sync.Map // by device: what its last loaded program exchanges, as groups
}

func (d joins) Join(ctx context.Context, peers ir.Peers, _ int64) (ir.Link, error) {
	if err := peers.Collective(ctx, ir.Collective{}, nil); err != nil { // as devices do, to compare notes
		return nil, err
	}
	if d.state.unlinked != nil {
		return nil, d.state.unlinked
	}
	d.state.joined.Add(1)
	return d.state, nil
}

func (l *linkage) Err() error {
	if err := l.torn.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *linkage) Note() string { return "" }

func (l *linkage) Close() error {
	l.ended.Add(1)
	return nil
}

func (d joins) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	if groups := groupsOf(p); len(groups) > 0 {
		d.state.exchanges.Store(d.ID(), groups)
	}
	e, err := d.Device.Load(p, mem)
	return failing{e, d}, err
}

// groupsOf lists the collectives of a program, those that cards do in one go together.
func groupsOf(p *ir.Program) (groups []string) {
	before := false
	for _, s := range p.Steps {
		c, is := s.Op.(ir.Collective)
		switch what := fmt.Sprint(c.Kind, c.Root, s.Out[0].Region, s.Out[0].Offset, s.Out[0].Shape); {
		case is && before && c.Joined:
			groups[len(groups)-1] += " and " + what
		case is:
			groups = append(groups, what)
		}
		before = is
	}
	return groups
}

type failing struct {
	ir.Executable
	dev joins
}

var errFailing = errors.New("the card fell off the bus")

func (f failing) Run(ctx context.Context, rt *ir.Runtime) error {
	if f.dev.ID() == 1 && f.dev.state.fail.Swap(false) {
		return errFailing
	}
	return f.Executable.Run(ctx, rt)
}

// onLinked makes a trainer on two cards that are as l says.
func onLinked(t *testing.T, tk task, l *linkage, opts ...dp.Option) *dp.DataParallel {
	t.Helper()
	cudaopstest.Setup(t, "2", "")
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat(tk.opts, opts, []dp.Option{
		dp.DeviceIDs(0, 1), dp.WrapDevices(func(d ir.Device) ir.Device { return joins{d, l} }),
	})...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestUnlinkedIsSaidOnce: cards that can't be linked train all the same, and one warning says why.
func TestUnlinkedIsSaidOnce(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 1, 6)
	var said bytes.Buffer
	l := &linkage{unlinked: &ir.UnlinkedError{Rank: 1, Why: "no library"}}
	d := onLinked(t, tk, l, dp.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	l.fail.Store(true)
	if _, err := d.Step(t.Context(), x[0], y[0]); !errors.Is(err, errFailing) {
		t.Errorf("got %v", err)
	}
	if _, err := d.Step(t.Context(), x[0], y[0]); err != nil { // after the group was made anew
		t.Error(err)
	}
	closed(t, d)
	if n := strings.Count(said.String(), "rank 1: no library"); n != 1 {
		t.Errorf("it was said %d times: %s", n, &said)
	}
}

// TestRanksExchangeAlike: whatever the strategy and the buckets, all ranks do the same collectives in the same groups: cards that don't would wait
// for each other forever.
func TestRanksExchangeAlike(t *testing.T) {
	for _, tk := range tasks() {
		x, y := batches(tk, 1, 6)
		for _, s := range strategies {
			for _, bucket := range []int{0, 64, 2000} {
				l := new(linkage)
				d := onLinked(t, tk, l, dp.WithStrategy(s), dp.BucketBytes(bucket))
				if _, err := d.Step(t.Context(), x[0], y[0]); err != nil {
					t.Fatal(err)
				}
				closed(t, d)
				first, _ := l.exchanges.Load(0)
				second, _ := l.exchanges.Load(1)
				if diff := cmp.Diff(first, second); diff != "" || first == nil {
					t.Errorf("%s, %v, buckets of %d bytes: the ranks' collectives differ: %s", tk.name, s, bucket, diff)
				}
			}
		}
	}
}

// TestLinksAreMadeAnew after a failure, with the programs that use them.
func TestLinksAreMadeAnew(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 1, 6)
	l := new(linkage)
	d := onLinked(t, tk, l)
	for _, fail := range []bool{false, true, false} {
		l.fail.Store(fail)
		if _, err := d.Step(t.Context(), x[0], y[0]); errors.Is(err, errFailing) != fail {
			t.Errorf("got %v", err)
		}
	}
	closed(t, d)
	if joined, ended := l.joined.Load(), l.ended.Load(); joined != 4 || ended != 4 {
		t.Errorf("%d links were made and %d ended, want 4", joined, ended)
	}
}

// TestTornTrainer: after cards were cut off in the middle of an exchange, nobody gets to use what is in their memory.
func TestTornTrainer(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 1, 6)
	l := new(linkage)
	d := onLinked(t, tk, l)
	defer closed(t, d)
	if _, err := d.Step(t.Context(), x[0], y[0]); err != nil {
		t.Fatal(err)
	}
	cut := errors.New("rank 1 is gone")
	l.torn.Store(&cut)
	l.fail.Store(true)
	var torn *dp.TornError
	if _, err := d.Step(t.Context(), x[0], y[0]); !errors.As(err, &torn) || !errors.Is(err, cut) {
		t.Errorf("the step: %v, want a TornError that wraps %q", err, cut)
	}
	for name, call := range map[string]func() error{
		"Step":      func() error { _, err := d.Step(t.Context(), x[0], y[0]); return err },
		"StepAsync": func() error { _, err := d.StepAsync(t.Context(), x[0], y[0]); return err },
		"Upload":    func() error { _, err := d.Upload(x[0], y[0]); return err },
		"Forward":   func() error { _, err := d.Forward(t.Context(), x[0]); return err },
		"StateDict": func() error { _, err := d.StateDict(); return err },
	} {
		if err := call(); !errors.As(err, &torn) {
			t.Errorf("later, %s: %v, want a TornError", name, err)
		}
	}
}
