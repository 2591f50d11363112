package dp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/host"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/job"
	"github.com/tandem-train/tandem/nn"
)

// DataParallel trains a model on one or more ranks. Make one with [New], end it with [DataParallel.Close].
type DataParallel struct {
	mu         sync.Mutex
	cfg        config
	procs      *processes // nil: this process trains by itself
	compiler   nn.Compiler
	team       team
	door       struct{ x, y door }
	programs   map[string]*compiled
	steps      map[string]*stepPlan
	forwards   map[string]*forwardPlan
	lastStep   *stepPlan
	shares     []data.Range // of all ranks, in the step in progress
	late       []*Loss      // of steps that are under way, the oldest first
	ints       *bool        // whether integer inputs go to the model as indices; nil until one was seen
	updates    int
	hyper      []float32
	job        stepJob
	meter      meter
	warned     bool
	warnedNorm bool
	linkTold   sync.Once // how cards are linked, where there are better ways
	torn       error     // a *TornError, or nil
	closed     bool
}

// ErrClosed is the error of using a DataParallel after Close.
var ErrClosed = errors.New("dp: closed")

// New prepares training of model. Parameters without a value are initialised from the seed; then the model is replicated on
// every card, and from now on the values in training are those on the cards: see [DataParallel.StateDict].
//
// In a job of several processes (started by tandem run, for instance) every process calls New, and waits for the others. The values are
// those of rank 0. SIGINT and SIGTERM end the waiting. Of a signal that the program has taken before, New does not know, and would wait for
// others that it has ended: take signals when New has returned.
func New(model nn.Module, loss nn.Loss, opt nn.Optimizer, opts ...Option) (*DataParallel, error) {
	t := &DataParallel{programs: map[string]*compiled{}, steps: map[string]*stepPlan{}, forwards: map[string]*forwardPlan{}}
	for _, o := range opts {
		o(&t.cfg)
	}
	var err error
	if t.procs, err = t.cfg.join(); err != nil {
		return nil, err
	}
	if err := t.build(model, loss, opt); err != nil {
		if t.procs != nil {
			err = errors.Join(err, t.procs.report(err))
		}
		return nil, err
	}
	return t, nil
}

// build does New's work. On error nothing is left open.
func (t *DataParallel) build(model nn.Module, loss nn.Loss, opt nn.Optimizer) error {
	switch {
	case model == nil:
		return errors.New("dp: the model is nil")
	case loss == nil:
		return errors.New("dp: the loss is nil")
	case opt == nil:
		return errors.New("dp: the optimizer is nil")
	}
	var place *job.Place
	if t.procs != nil {
		place = t.procs.place
	}
	if err := t.cfg.resolve(place); err != nil {
		return err
	}
	parts := []any{loss, opt, t.cfg.schedule}
	for _, c := range t.cfg.clip {
		parts = append(parts, c)
	}
	for _, part := range parts {
		if v, ok := part.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return err
			}
		}
	}
	layout, err := nn.NewLayout(model)
	if err != nil {
		return err
	}
	if err := t.checkPlacement(layout); err != nil {
		return err
	}
	if err := t.cfg.warnImbalance(); err != nil {
		return err
	}
	// To draw a large model's numbers takes about as long as to open cards.
	var drawing errgroup.Group
	drawing.Go(func() error { return nn.Initialize(model, t.cfg.seed) })
	defer drawing.Wait() //nolint:errcheck // open has the error, if it came that far
	t.compiler = nn.Compiler{Model: model, Loss: loss, Optimizer: opt, Clip: t.cfg.clip, Layout: layout, Scaled: t.cfg.precise == nn.FP16}
	t.hyper = make([]float32, len(opt.Hyper()))
	if err := t.open(drawing.Wait); err != nil {
		return err
	}
	if t.cfg.ids[0] != Host {
		if err := nn.To(model, t.cfg.ids[0]); err != nil {
			return errors.Join(err, t.Close())
		}
	}
	return nil
}

// checkPlacement finds a parameter or buffer that was moved to another card than the primary one.
func (t *DataParallel) checkPlacement(l *nn.Layout) error {
	primary := t.cfg.ids[0]
	check := func(name string, device int) error {
		if device == Host || device == primary {
			return nil
		}
		return &PrimaryCardError{Parameter: name, Device: device, IDs: t.cfg.ids}
	}
	for i := len(l.Params) - 1; i >= 0; i-- {
		if err := check(l.Params[i].Name, l.Params[i].Parameter.Device()); err != nil {
			return err
		}
	}
	for _, b := range l.Buffers {
		if err := check(b.Name, b.Buffer.Device()); err != nil {
			return err
		}
	}
	return nil
}

// open opens the devices, takes the arenas, and replicates the model, whose values are there when initialized returns.
func (t *DataParallel) open(initialized func() error) error {
	ids, first, ctx := t.cfg.ids, 0, context.Background()
	if t.procs != nil {
		var stop context.CancelFunc
		ctx, stop = untilTold()
		defer stop()
		first = t.procs.place.Rank
		if err := t.procs.connect(ctx, t.cfg.comm()...); err != nil {
			return err
		}
	}
	t.shares = make([]data.Range, t.WorldSize())
	if err := t.openRanks(first, ids); err != nil {
		return errors.Join(err, t.free())
	}
	half, halves := t.cfg.precise.Half()
	t.compiler.Copied = halves && ir.TraitsOf(t.team.ranks[0].dev).Halves
	t.compiler.Ranks = t.WorldSize()
	if half == ir.BF16 && t.roundsGradients() { // float16 has not the range
		t.compiler.GradHalf = half
	}
	if t.procs != nil {
		t.procs.facts = t.agreement()
	}
	if err := t.regroup(ctx); err != nil {
		return errors.Join(err, t.free())
	}
	t.team.start()
	err := t.linkCards(ctx)
	if err == nil {
		err = t.team.do(ctx, placeJob{t})
	}
	if err == nil {
		err = initialized()
	}
	if err == nil {
		err = t.push()
	}
	if err == nil && t.procs != nil {
		var alike bool
		if alike, err = t.alike(ctx); err == nil && !alike {
			err = t.replicate(ctx)
		}
	}
	if err == nil {
		err = t.touch()
	}
	if err == nil && ctx.Err() != nil { // told to end when nothing waited any more
		err = fmt.Errorf("dp: %w", context.Cause(ctx))
	}
	if err != nil {
		t.team.abort(err)
		return errors.Join(err, t.Close())
	}
	return nil
}

// openRanks makes this process's ranks, of which the first has that number, and opens their devices, all at once: a card takes a while.
func (t *DataParallel) openRanks(first int, ids []int) error {
	threads := max(1, runtime.GOMAXPROCS(0)/len(ids))
	var opening errgroup.Group
	for i, id := range ids {
		r := &rank{index: first + i, comms: map[int]ir.Comm{}, execs: map[*ir.Program]*loaded{}, second: second{log: t.cfg.logger}}
		t.team.ranks = append(t.team.ranks, r)
		if id == Host {
			r.dev = host.Open(threads)
			continue
		}
		opening.Go(func() error {
			dev, err := cudaops.Open(id, threads)
			if err == nil { // not a nil pointer in the interface
				r.dev = dev
			}
			return err
		})
	}
	if err := opening.Wait(); err != nil {
		return err
	}
	if t.cfg.wrap != nil {
		for _, r := range t.team.ranks {
			r.dev = t.cfg.wrap(r.dev)
		}
	}
	return nil
}

// reconnect connects the ranks anew, and their cards, after a failure has broken their group.
func (t *DataParallel) reconnect(ctx context.Context) error {
	_ = t.settleAll() // whoever wants to know asks the Loss
	if err := t.unlink(); err != nil {
		var torn *TornError
		if errors.As(err, &torn) {
			t.torn = torn
		}
		return err
	}
	if err := t.regroup(ctx); err != nil {
		return err
	}
	return t.linkCards(ctx)
}

// regroup connects the ranks.
func (t *DataParallel) regroup(ctx context.Context) error {
	var group []comm.Comm
	var err error
	if t.procs != nil {
		group = make([]comm.Comm, 1)
		group[0], err = t.procs.newGroup(ctx, t.updates)
	} else {
		group, err = comm.NewLocal(len(t.team.ranks), t.cfg.comm()...)
	}
	if err != nil {
		return err
	}
	for i, r := range t.team.ranks {
		if r.group != nil {
			if err := r.group.Close(); err != nil {
				return err
			}
		}
		r.group = group[i]
		clear(r.comms)
	}
	if t.procs != nil {
		// Ranks that have failed may have come to other plans.
		clear(t.steps)
		t.lastStep = nil
	}
	return nil
}

// apart is how many bytes gradients take as halves, at least, where two ranks tell each other theirs rather than sum them in float32: the sum of the losses
// takes a launch of its own then, in whose time two H200s move 2 MiB more.
const apart = 4 << 20

// roundsGradients reports whether each rank's gradients are rounded to halves: where nothing is added to them but another rank's. Of more than two ranks,
// what each of them has would be more than the sums are, in memory and on the wire.
func (t *DataParallel) roundsGradients() bool {
	switch {
	case t.cfg.micro > 1 || t.cfg.auto:
		return false
	case t.WorldSize() == 2:
		return 2*int64(t.compiler.Layout.Elements) >= t.cfg.apart
	}
	return t.WorldSize() == 1
}

// sizes are the elements of a rank's arenas.
func (t *DataParallel) sizes(rank int) (size [ir.NumRegions]int) {
	l := t.compiler.Layout
	size[ir.Params] = t.compiler.ParamElements()
	size[ir.Grads] = t.compiler.GradElements()
	size[ir.Buffers] = l.BufferElements
	lo, hi := t.updateRange(rank)
	size[ir.State] = t.compiler.StateElements(hi - lo)
	return size
}

// updateRange is the part of the parameter arena that a rank updates.
func (t *DataParallel) updateRange(rank int) (lo, hi int) {
	n := t.compiler.Layout.Elements
	switch t.cfg.strategy {
	case Sharded:
		return ir.ShareOf(n, rank, t.WorldSize())
	case Gather:
		if rank > 0 {
			return 0, 0
		}
	}
	return 0, n
}

// placeJob takes the arenas.
type placeJob struct{ t *DataParallel }

func (j placeJob) run(_ context.Context, r *rank) error {
	size := j.t.sizes(r.index)
	for _, region := range ours {
		m, err := alloc(r.dev, "model: "+region.String(), 4*int64(size[region]))
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		r.mem[region] = m
		if err := m.Clear(); err != nil {
			return err
		}
	}
	if !j.t.compiler.Scaled {
		return nil
	}
	at, words := j.t.compiler.FirstScale()
	return r.mem[ir.Params].Write(4*int64(at), ir.Bytes(words))
}

// piece is how many bytes of a model are moved at a time where it goes through memory of ours: what is used again is faster than as much as
// a large model takes.
const piece = 4 << 20

// inPieces does something to all of a memory.
func inPieces(m ir.DeviceMemory, do func(off, n int64) error) error {
	for off := int64(0); off < m.Len(); off += piece {
		if err := do(off, min(m.Len()-off, piece)); err != nil {
			return err
		}
	}
	return nil
}

// push writes the model's values to every rank.
func (t *DataParallel) push() error {
	l := t.compiler.Layout
	return t.team.do(context.Background(), rankFunc(func(r *rank) error {
		for _, p := range l.Params {
			if err := r.mem[ir.Params].Write(4*int64(p.Slot.Offset), ir.Bytes(p.Parameter.Data())); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		for _, b := range l.Buffers {
			if err := r.mem[ir.Buffers].Write(4*int64(b.Slot.Offset), ir.Bytes(b.Buffer.Data())); err != nil {
				return fmt.Errorf("%s: %w", b.Name, err)
			}
		}
		return nil
	}))
}

// pull reads the model's values from this process's first card.
func (t *DataParallel) pull() error {
	l := t.compiler.Layout
	return t.team.do(context.Background(), rankFunc(func(r *rank) error {
		if r != t.team.ranks[0] {
			return nil
		}
		for _, p := range l.Params {
			if err := r.mem[ir.Params].Read(4*int64(p.Slot.Offset), ir.Bytes(p.Parameter.Data())); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		for _, b := range l.Buffers {
			if err := r.mem[ir.Buffers].Read(4*int64(b.Slot.Offset), ir.Bytes(b.Buffer.Data())); err != nil {
				return fmt.Errorf("%s: %w", b.Name, err)
			}
		}
		return nil
	}))
}

// rankFunc is a function as a job.
type rankFunc func(r *rank) error

func (f rankFunc) run(_ context.Context, r *rank) error { return f(r) }

// Close gives back memory, devices and goroutines. The model keeps the values that it had when StateDict was last called.
func (t *DataParallel) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	if t.procs != nil {
		t.procs.linger.stop()
	}
	_ = t.settleAll() // whoever wants to know asks the Loss
	err := t.team.do(context.Background(), rankFunc(func(r *rank) error {
		err := r.free()
		r.execs, r.mem, r.dev = nil, [ir.NumRegions]ir.DeviceMemory{}, closedDevice{r.dev}
		return err
	}))
	t.team.stop()
	errs := []error{err}
	if t.procs != nil {
		t.team.abort(errLeft) // for those that go on
	}
	for _, r := range t.team.ranks {
		errs = append(errs, r.group.Close())
	}
	for _, f := range t.forwards {
		errs = append(errs, f.free())
	}
	return errors.Join(errs...)
}

// errLeft is what other ranks hear that go on after this one has closed its trainer.
var errLeft = fmt.Errorf("it has closed its trainer; a rank whose batches end before the others' waits for them in Join: %w", comm.ErrClosed)

// closedDevice keeps a closed device's number for messages.
type closedDevice struct{ ir.Device }

// free gives back what open had taken before its goroutines ran.
func (t *DataParallel) free() error {
	t.closed = true
	var errs []error
	for _, r := range t.team.ranks {
		errs = append(errs, r.free())
	}
	return errors.Join(errs...)
}

// WorldSize is the number of ranks, those of other processes included.
func (t *DataParallel) WorldSize() int {
	if t.procs != nil {
		return t.procs.place.World
	}
	return len(t.cfg.ids)
}

// Rank is the number of this process's first rank: 0 in the process that has the primary card, the one to print and to save.
func (t *DataParallel) Rank() int {
	if t.procs != nil {
		return t.procs.place.Rank
	}
	return 0
}

// Devices lists the cards of this process's ranks by logical number, the first first; on the host it is [Host].
func (t *DataParallel) Devices() []int { return slices.Clone(t.cfg.ids) }

// Strategy is the strategy in use.
func (t *DataParallel) Strategy() Strategy { return t.cfg.strategy }

// Steps is the number of updates done.
func (t *DataParallel) Steps() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.updates
}

// SkippedSteps is how many updates were skipped, because their gradients were not finite in [nn.FP16]: a few at the start of training are
// usual, until the scale of the loss has come down. It waits for steps that are under way.
func (t *DataParallel) SkippedSteps() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil || !t.compiler.Scaled {
		return 0, err
	}
	n := make([]float32, 1)
	err := t.team.do(context.Background(), rankFunc(func(r *rank) error {
		if r != t.team.ranks[0] {
			return nil
		}
		return r.mem[ir.Params].Read(4*int64(t.compiler.Skipped()), ir.Bytes(n))
	}))
	return int(n[0]), err
}

// RankMemory is what training holds on the device of one rank of this process.
type RankMemory struct {
	Rank   int
	Device int
	ir.Memory
}

// Memory says what the model and the programs compiled so far hold, for each rank, in bytes: exactly what was taken from the
// device's allocator. Programs share what they have between their steps (activations); other own kinds are summed.
func (t *DataParallel) Memory() []RankMemory {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]RankMemory, len(t.team.ranks))
	for i, r := range t.team.ranks {
		m := needs(t.sizes(r.index), slices.Collect(maps.Keys(r.execs)))
		m.Activations = 0
		for _, a := range r.arenas {
			m.Activations += ir.Allocated(a.Len())
		}
		m.Inputs += ir.Allocated(r.second.bytes())
		out[i] = RankMemory{Rank: r.index, Device: t.cfg.ids[i], Memory: m}
	}
	return out
}
