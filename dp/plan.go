package dp

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// Plan says what a call with a batch of one shape takes of the cards of this process, known without running it.
type Plan struct {
	Call  string // "Step" or "Forward"
	Shape []int  // of the whole batch's input
	Parts int    // in which each rank computes its share, see [MicroBatches]
	Cards []CardPlan

	// Largest is the number of samples of a batch of this kind that fits, in so many parts, while one of a sample more does not: the largest
	// one, but that a few samples more may fit again where memory is taken in coarse units. It is 0 where not one sample fits, and
	// [Unlimited] on the host, of which no limit is known.
	Largest int
}

// Unlimited is [Plan.Largest] where nothing limits it.
const Unlimited = -1

// CardPlan is a plan's part on one card. All sizes are bytes.
type CardPlan struct {
	RankMemory // what the model and this batch take, by kind

	Workspace int64         // of kernels and libraries
	Other     int64         // what this process holds on the card besides: other programs, batches; if it fits
	Reserved  int64         // what the card's allocator will hold for all of that, in its units; if it fits
	Context   int64         // what the process holds beside the allocator now: the card's context, kernels, libraries
	Limit     cudaops.Limit // what the process may hold, and what says so
	Free      int64         // on the card now, all processes counted

	// Unmeasured says that the fastest algorithms will be looked for when such a batch first comes, and be remembered from then on. Until
	// then Workspace is the most that it may be, or with [AutoMicroBatch], which tries, what is likely.
	Unmeasured bool

	// Err is why it does not fit, an [*cudaops.OutOfMemoryError], or nil.
	Err error

	held int64 // now, by the card's allocator
}

// Total is what the model and the batch take.
func (c *CardPlan) Total() int64 { return c.Memory.Total() + c.Workspace }

// Fits reports whether all cards of this process have room for the batch.
func (p *Plan) Fits() bool {
	return !slices.ContainsFunc(p.Cards, func(c CardPlan) bool { return c.Err != nil })
}

// String is the plan as a table, a column a card.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s with a batch of %v", p.Call, p.Shape)
	if p.Parts > 1 {
		fmt.Fprintf(&b, " in %d parts", p.Parts)
	}
	b.WriteByte('\n')
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(c *CardPlan) string) {
		fmt.Fprint(w, name, "\t")
		for i := range p.Cards {
			fmt.Fprint(w, cell(&p.Cards[i]), "\t")
		}
		fmt.Fprintln(w)
	}
	size := func(name string, of func(c *CardPlan) int64) {
		if slices.ContainsFunc(p.Cards, func(c CardPlan) bool { return of(&c) > 0 }) {
			row(name, func(c *CardPlan) string { return cudaops.FormatSize(of(c)) })
		}
	}
	row("", func(c *CardPlan) string { return cudaops.String(c.Device) })
	size("parameters", func(c *CardPlan) int64 { return c.Parameters })
	size("gradients", func(c *CardPlan) int64 { return c.Gradients })
	size("optimizer state", func(c *CardPlan) int64 { return c.OptimizerState })
	size("buffers", func(c *CardPlan) int64 { return c.Buffers })
	size("activations", func(c *CardPlan) int64 { return c.Activations })
	size("inputs", func(c *CardPlan) int64 { return c.Inputs })
	size("outputs", func(c *CardPlan) int64 { return c.Outputs })
	size("constants", func(c *CardPlan) int64 { return c.Constants })
	workspace := "workspace"
	if slices.ContainsFunc(p.Cards, func(c CardPlan) bool { return c.Unmeasured }) {
		workspace = "workspace, unmeasured"
	}
	size(workspace, func(c *CardPlan) int64 { return c.Workspace })
	size("together", (*CardPlan).Total)
	size("other in use", func(c *CardPlan) int64 { return c.Other })
	size("reserved", func(c *CardPlan) int64 { return c.Reserved })
	size("context", func(c *CardPlan) int64 { return c.Context })
	size("free on the card", func(c *CardPlan) int64 { return c.Free })
	size("allowed", func(c *CardPlan) int64 { return c.Limit.Bytes })
	row("fits", func(c *CardPlan) string {
		if c.Err != nil {
			return "no"
		}
		return "yes"
	})
	_ = w.Flush() // to memory
	said := ""
	for _, c := range p.Cards {
		if c.Device != Host && c.Limit.String() != said {
			said = c.Limit.String()
			fmt.Fprintf(&b, "%s: allowed are %s\n", cudaops.String(c.Device), said)
		}
	}
	switch p.Largest {
	case Unlimited:
	case 0:
		b.WriteString("no batch fits\n")
	default:
		fmt.Fprintf(&b, "the largest batch that fits has %d samples\n", p.Largest)
	}
	return b.String()
}

// FitError is the error of a batch that has no room on the cards. Nothing of it is allocated. It wraps the
// [*cudaops.OutOfMemoryError] of the card that has none.
type FitError struct {
	Plan *Plan
	Err  error
}

func (e *FitError) Error() string {
	return fmt.Sprintf("a batch of %v does not fit: %v\n%s", e.Plan.Shape, e.Err, e.Plan)
}

// Unwrap returns the error of the card.
func (e *FitError) Unwrap() error { return e.Err }

// Plan says what a step on a batch of that shape takes, see [DataParallel.Step], without running it: nothing is allocated, but on real cards the
// libraries that the step needs are opened, whose memory is the context's. In a job of several processes each asks for itself. Programs of other batches count as what can be unloaded, and arenas that the batch can use are no
// further cost.
func (t *DataParallel) Plan(shape ...int) (*Plan, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, _, err := t.planOf(shape)
	return p, err
}

// demand is what a call wants to have on the cards.
type demand struct {
	programs [][]*ir.Program // of the ranks of this process
	gathered int64           // bytes on the output card
}

// planOf plans a step on a batch of that shape without keeping it.
func (t *DataParallel) planOf(shape []int) (*Plan, demand, error) {
	if err := t.usable(); err != nil {
		return nil, demand{}, err
	}
	if len(shape) <= t.cfg.dim || slices.Min(shape) < 1 {
		return nil, demand{}, fmt.Errorf("dp: plan for %v: want the shape of an input that has samples along dimension %d", shape, t.cfg.dim)
	}
	defer t.trial()()
	forms := []form{{false, shape}, {true, shape}} // whether a model takes indices shows when it is traced
	if t.ints != nil && *t.ints {
		slices.Reverse(forms)
	}
	p, d, err := t.planForm(forms[0])
	if err != nil {
		if q, e, other := t.planForm(forms[1]); other == nil {
			return q, e, nil
		}
	}
	return p, d, err
}

func (t *DataParallel) planForm(x form) (*Plan, demand, error) {
	n, th := x.shape[t.cfg.dim], thrift{parts: t.cfg.micro}
	shares := t.sharesOf(n)
	ok, err := t.wouldFit(x, shares, th)
	if err == nil && !ok {
		th.frugal = true
		th.parts, err = t.fewestParts(x, shares, th.parts)
	}
	if err != nil {
		return nil, demand{}, err
	}
	compile := t.stepPrograms(x)
	p, err := t.describe("Step", x.shape, th, compile)
	if err != nil {
		return nil, demand{}, err
	}
	d, err := compile(n, th)
	return p, d, err
}

// trial lets programs be compiled that are not kept. The function that it returns ends that.
func (t *DataParallel) trial() func() {
	programs, warned := t.programs, t.warned
	t.programs, t.warned = maps.Clone(programs), true
	return func() { t.programs, t.warned = programs, warned }
}

// sharesOf are the ranks' shares of n samples that are scattered.
func (t *DataParallel) sharesOf(n int) []data.Range {
	shares := make([]data.Range, t.WorldSize())
	for r := range shares {
		shares[r] = data.Chunk(n, len(shares), r)
	}
	return shares
}

// stepPrograms compiles, for any number of samples, a step like one on x.
func (t *DataParallel) stepPrograms(x form) func(samples int, th thrift) (demand, error) {
	return func(samples int, th thrift) (demand, error) {
		x := form{x.ints, slices.Clone(x.shape)}
		x.shape[t.cfg.dim] = samples
		p, err := t.planStep(x, t.sharesOf(samples), th)
		if err != nil {
			return demand{}, err
		}
		return demand{programs: p.programs}, nil
	}
}

// describe makes the plan of a call whose programs compile gives for any number of samples.
func (t *DataParallel) describe(call string, shape []int, th thrift, compile func(samples int, th thrift) (demand, error)) (*Plan, error) {
	n := shape[t.cfg.dim]
	try := func(samples int, th thrift) (*Plan, error) {
		d, err := compile(samples, th)
		if err != nil {
			return nil, err
		}
		cards, err := t.rehearse(d, !t.cfg.auto)
		return &Plan{Call: call, Shape: slices.Clone(shape), Parts: th.parts, Cards: cards, Largest: Unlimited}, err
	}
	p, err := try(n, th)
	if err != nil || t.cfg.ids[0] == Host {
		return p, err
	}
	p.Largest, err = largest(n, func(samples int) (*Plan, error) {
		p, err := try(samples, thrift{th.parts, true})
		var wide *weighError
		if samples != n && errors.As(err, &wide) {
			p.Cards[wide.rank].Err, err = wide, nil
		}
		return p, err
	})
	if err != nil {
		return p, err
	}
	// Libraries have been asked about other sizes, and keep what they took for that.
	for i := range p.Cards {
		h, err := cudaops.Rehearse(p.Cards[i].Device)
		if err != nil {
			return p, err
		}
		p.Cards[i].Context = h.Overhead()
	}
	return p, nil
}

// weighError is the error of a program that a device would not load, whatever its memory: the batch is too large for something else.
type weighError struct {
	rank int // of this process
	err  error
}

func (e *weighError) Error() string { return e.err.Error() }
func (e *weighError) Unwrap() error { return e.err }

// largest finds a number of samples that fits while one more does not, by trying some, from n on. 0 fits.
func largest(n int, try func(samples int) (*Plan, error)) (int, error) {
	p, err := try(n)
	if err != nil {
		return 0, err
	}
	// What a batch takes grows by about the same with every sample, so that two numbers tell where to look; from there go on by steps that
	// grow until the limit lies between two numbers.
	at := math.MaxInt
	for other := 2 * n; at == math.MaxInt; other *= 2 {
		q, err := try(other)
		if err != nil {
			return 0, err
		}
		at = meet(n, p, other, q)
	}
	for range 2 { // the wider apart, the better it is known
		q, err := try(at)
		if err != nil {
			return 0, err
		}
		if better := meet(n, p, at, q); better < math.MaxInt {
			at = better
		}
	}
	lo, hi := 0, math.MaxInt
	for step := 1; hi-lo > 1; step *= 2 {
		q, err := try(at)
		switch {
		case err != nil:
			return 0, err
		case q.Fits():
			lo, at = at, at+step
		default:
			hi, at = at, at-step
		}
		if lo > 0 && hi < math.MaxInt || at <= lo {
			at = lo + (hi-lo)/2
		}
	}
	return lo, nil
}

// meet is where a line through two plans' totals meets what a card has, at the first card where it does, and at least 1; MaxInt where it
// nowhere does.
func meet(n int, p *Plan, m int, q *Plan) int {
	at := math.MaxInt
	for i := range p.Cards {
		c := &p.Cards[i]
		slope := float64(q.Cards[i].Total()-c.Total()) / float64(m-n)
		if slope > 0 {
			room := min(c.Limit.Bytes, c.Free+c.held) - c.Total() - c.Context
			at = min(at, n+int(float64(room)/slope))
		}
	}
	return max(at, 1)
}

// rehearse finds out what a call would take on each card of this process, at most or likely, and whether there is room.
func (t *DataParallel) rehearse(d demand, atMost bool) ([]CardPlan, error) {
	cards := make([]CardPlan, len(d.programs))
	for i, r := range t.team.ranks {
		c, progs, gathered := &cards[i], d.programs[i], int64(0)
		c.RankMemory = RankMemory{Rank: r.index, Device: t.cfg.ids[i], Memory: needs(t.sizes(r.index), progs)}
		if t.procs == nil && c.Device == t.cfg.output {
			gathered = d.gathered
			c.Outputs += ir.Allocated(gathered)
		}
		if c.Device == Host {
			continue
		}
		var err error
		if c.Limit, err = cudaops.MemoryLimit(c.Device); err != nil {
			return nil, err
		}
		if c.Free, _, err = cudaops.MemGetInfo(c.Device); err != nil {
			return nil, err
		}
		extra, err := r.weigh(c, progs, atMost)
		if err != nil {
			return cards, &weighError{i, err}
		}
		var oom *cudaops.OutOfMemoryError
		for _, unload := range []bool{false, true} {
			c.Err, err = r.rehearse(c, progs, extra, gathered, unload)
			if err != nil || c.Err == nil || !errors.As(c.Err, &oom) {
				break
			}
		}
		if err = cmp.Or(err, c.Err); err != nil && !errors.As(err, &oom) {
			return nil, err
		}
	}
	return cards, nil
}

// weigh notes in c what programs take besides their regions, and gives that of those that are not loaded: at most, or likely.
func (r *rank) weigh(c *CardPlan, progs []*ir.Program, atMost bool) (extra []int64, err error) {
	dev, weighs := r.dev.(ir.Weigher)
	for _, p := range progs {
		if l := r.execs[p]; l != nil {
			if e, ok := l.exec.(ir.Weighed); ok {
				c.Workspace += ir.Allocated(e.Extra())
			}
		}
	}
	if !weighs {
		return nil, nil
	}
	for _, p := range r.missing(progs) {
		likely, most, err := dev.Weigh(p)
		if err != nil {
			return nil, err
		}
		unmeasured := likely < most
		if !atMost {
			most = likely
		}
		extra = append(extra, most)
		c.Workspace += ir.Allocated(most)
		c.Unmeasured = c.Unmeasured || unmeasured
	}
	return extra, nil
}

// rehearse does what load would do, where the missing programs have so much besides their regions, after unloading what else is loaded or
// without, and notes in c what comes of it. The first error is load's.
func (r *rank) rehearse(c *CardPlan, progs []*ir.Program, extra []int64, gathered int64, unload bool) (failed, err error) {
	h, err := cudaops.Rehearse(c.Device)
	if err != nil {
		return nil, err
	}
	c.held = h.Reserved()
	arenas := r.arenas
	if unload {
		stays := map[*arena]bool{}
		for p, l := range r.execs {
			if slices.Contains(progs, p) {
				stays[l.work] = true
				continue
			}
			if err := h.Unload(l.exec); err != nil {
				return nil, err
			}
			for _, m := range l.mem {
				if err := free(h, m); err != nil {
					return nil, err
				}
			}
		}
		arenas = nil
		for _, a := range r.arenas {
			if stays[a] {
				arenas = append(arenas, a)
			} else if err := free(h, a.DeviceMemory); err != nil {
				return nil, err
			}
		}
		if err := free(h, r.second.mem); err != nil {
			return nil, err
		}
		if err := h.EmptyCache(); err != nil {
			return nil, err
		}
	}
	for _, q := range requests(arenas, r.missing(progs)) {
		if failed = h.Alloc(q.bytes); failed != nil {
			failed = fmt.Errorf("%v: %w", q, failed)
			break
		}
	}
	for _, bytes := range append(extra, gathered) {
		if failed == nil {
			failed = h.Alloc(bytes)
		}
	}
	if failed == nil {
		failed = h.Load()
	}
	c.Context = h.Overhead()
	if failed == nil {
		c.Reserved, c.Other = h.Reserved(), max(0, h.Allocated()-c.Total())
	}
	return failed, nil
}

// free gives memory of a rank's device back in a rehearsal.
func free(h *cudaops.Rehearsal, m ir.DeviceMemory) error {
	if own, ok := m.(*cudaops.Memory); ok {
		return h.Free(own)
	}
	return nil // there is none, or a test has wrapped it
}

// needs is what a rank with arenas of that size takes for programs that are loaded together.
func needs(size [ir.NumRegions]int, progs []*ir.Program) ir.Memory {
	for _, p := range progs {
		size[ir.Work] = max(size[ir.Work], p.Size[ir.Work])
	}
	m := (&ir.Program{Size: size}).Memory()
	for _, p := range progs {
		own := p.Memory()
		m.Inputs += own.Inputs
		m.Outputs += own.Outputs
		m.Constants += own.Constants
	}
	return m
}

// fit takes what a call wants, by get, where compile compiles one like it for any number of samples. Where there is no room, the error is a
// [*FitError].
func (t *DataParallel) fit(call string, shape []int, th thrift, get func() error, compile func(int, thrift) (demand, error)) error {
	err := get()
	var replica *ReplicaError
	if !isFull(err) || !errors.As(err, &replica) {
		return err
	}
	defer t.trial()()
	p, e := t.describe(call, shape, th, compile)
	if e != nil {
		return errors.Join(err, e)
	}
	replica.Err = &FitError{p, replica.Err}
	return err
}
