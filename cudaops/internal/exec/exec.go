package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
	"github.com/tandem-train/tandem/internal/ir"
)

// Traits are what cards are good at.
var Traits = ir.Traits{Halves: true, ChannelsLast: true}

// GraphVariable set to "off", in place of "on", makes programs run step by step, each waited for, so that an error names the step that failed.
const GraphVariable = "TANDEM_CUDA_GRAPH"

// Exec is a program ready to run on a card.
type Exec struct {
	card    *cuda.Card  // with a stream of its own, in which graphs are captured
	shared  cuda.Stream // the card's, into which they are launched
	link    Link        // to the other ranks' cards, or nil
	plan    *plan
	careful bool // no graphs
	closed  bool

	tools   *toolbox
	images  [][]byte // of the plan's kernels, one a source
	block   cuda.Ptr // scratch and control
	extra   int64
	pinned  cuda.Pinned // images of the control block, and what runs put out, one a slot
	image   int         // of the run in progress
	slots   [slots]slot
	contest contest // of arrangements
	// captures says in which arrangements, with which images, graphs have been captured.
	captures [numArrangements][slots]bool
	staged   cuda.Pinned // for collectives
	ready    cuda.Event
	parts    []part
	stream   cuda.Stream        // that tasks are put into
	turn     turn               // of the task, in a graph that is captured
	branches []cuda.Stream      // of a graph that is captured, the card's first
	marks    []cuda.Event       // by which they wait for each other
	base     [numBases]cuda.Ptr // addresses
	runs     uint64
	undo     []func() error
	tried    bool    // memory was taken to measure on, and given back
	sizing   *sizing // see Size; nil for what is to run
}

var _ ir.Starter = (*Exec)(nil)

// part is a segment made ready.
type part struct {
	segment
	work     []work
	arranged [numArrangements]arrangement
}

// work puts one task into the stream.
type work struct {
	step int
	put  func() error
}

// Load makes p ready to run on a card, on memory of at least the program's size a region, each on a 256-byte boundary. The memory must
// outlive the Exec. Constants are written into their region. Collectives among all ranks go by the link, if there is one.
func Load(card *cuda.Card, p *ir.Program, mem [ir.NumRegions]cuda.Ptr, link Link) (*Exec, error) {
	return load(card, p, mem, link, func(e *Exec) libraries { return vendor{e, e.tools} })
}

// load is Load with the libraries that libs gives.
func load(card *cuda.Card, p *ir.Program, mem [ir.NumRegions]cuda.Ptr, link Link, libs func(*Exec) libraries) (*Exec, error) {
	graph, err := switched(GraphVariable)
	if err != nil {
		return nil, err
	}
	e := &Exec{card: new(*card), shared: card.Stream, link: link, tools: borrow(card), careful: graph == "off"}
	e.later(e.tools.giveBack)
	err = e.card.Do(func() error { return e.load(p, mem, libs) })
	if err != nil {
		err = errors.Join(err, e.card.Do(e.release))
		return nil, fmt.Errorf("exec: card %d: load %s: %w", card.Ordinal, p.Name, err)
	}
	return e, nil
}

// switched is what a variable says that may be on, off or not set.
func switched(variable string) (string, error) {
	value := os.Getenv(variable)
	if !slices.Contains([]string{"", "on", "off"}, value) {
		return "", fmt.Errorf("%s is %q: it takes on or off", variable, value)
	}
	return value, nil
}

// boundary is what regions' addresses are multiples of.
const boundary = 256

func (e *Exec) load(p *ir.Program, mem [ir.NumRegions]cuda.Ptr, libs func(*Exec) libraries) error {
	for r := range ir.NumRegions {
		switch {
		case p.Size[r] > 0 && mem[r] == 0:
			return fmt.Errorf("region %s is missing, of which the program needs %d bytes", r, p.Bytes(r))
		case mem[r]%boundary != 0:
			return fmt.Errorf("region %s lies at %#x, which is no multiple of %d", r, mem[r], boundary)
		}
	}
	var err error
	if e.card.Stream, err = e.card.StreamCreate(); err != nil {
		return err
	}
	e.stream = e.card.Stream
	e.later(func() error { return e.card.StreamDestroy(e.card.Stream) })
	e.later(func() error { return e.tools.use(e.shared) })
	events, timed := []*cuda.Event{&e.ready}, 2*slots
	for i := range e.slots {
		events = append([]*cuda.Event{&e.slots[i].begun, &e.slots[i].ended}, append(events, &e.slots[i].done)...)
	}
	for i, event := range events {
		if *event, err = e.card.EventCreate(i < timed); err != nil {
			return err
		}
		e.later(func() error { return e.card.EventDestroy(*event) })
	}
	copy(e.base[:], mem[:])
	if err := e.planned(p, libs(e)); err != nil {
		return err
	}
	if e.tried {
		if err := e.card.MemTrim(); err != nil {
			return err
		}
	}
	if err := e.memory(); err != nil {
		return err
	}
	if err := e.constants(); err != nil {
		return err
	}
	if err := e.bindAll(); err != nil {
		return err
	}
	return e.arrange()
}

// planned plans p. What is known already of its kernels is compiled meanwhile.
func (e *Exec) planned(p *ir.Program, libs libraries) error {
	compiled := func() error { return nil }
	if v, ok := libs.(vendor); ok {
		var err error
		if compiled, err = v.ahead(p, e.link != nil); err != nil {
			return err
		}
	}
	plan, err := newPlan(p, libs, e.link != nil)
	e.plan = plan
	return errors.Join(err, compiled())
}

// bindAll compiles the plan's kernels and turns its tasks into calls.
func (e *Exec) bindAll() error {
	functions, err := e.functions()
	if err != nil {
		return err
	}
	if err := e.shareAlike(functions); err != nil {
		return err
	}
	b := &binder{e, functions}
	for _, s := range e.plan.segments {
		made := part{segment: s}
		for _, t := range s.tasks {
			if l, ok := t.do.(launch); ok && l.shared > 0 {
				if err := e.card.FuncSetAttribute(functions[l.kernel], cuda.FuncMaxDynamicSharedMemory, l.shared); err != nil {
					return err
				}
			}
			made.work = append(made.work, work{t.step, b.bind(t.do)})
		}
		e.parts = append(e.parts, made)
	}
	return nil
}

// shareAlike lets all kernels run with as much shared memory as there is, if some want much: a multiprocessor divides one memory into that and its
// cache, and kernels that want it divided in different ways wait for each other there.
func (e *Exec) shareAlike(functions []cuda.Function) error {
	if !slices.ContainsFunc(e.plan.segments, func(s segment) bool {
		return slices.ContainsFunc(s.tasks, func(t task) bool { l, ok := t.do.(launch); return ok && l.shared > 0 })
	}) {
		return nil
	}
	for _, f := range functions {
		if err := e.card.FuncSetAttribute(f, cuda.FuncSharedMemoryShare, 100); err != nil {
			return err
		}
	}
	return nil
}

// later adds something to do when the Exec is released; the last added comes first.
func (e *Exec) later(f func() error) { e.undo = append(e.undo, f) }

func (e *Exec) release() error {
	var errs []error
	for i := len(e.undo) - 1; i >= 0; i-- {
		errs = append(errs, e.undo[i]())
	}
	e.undo = nil
	return errors.Join(errs...)
}

// memory takes the executable's own memory.
func (e *Exec) memory() (err error) {
	inner := roundUp(int64(e.plan.scratch))
	e.extra = inner + int64(e.plan.controlBytes())
	if e.block, err = e.card.MemAlloc(e.extra); err != nil {
		return err
	}
	e.later(func() error { return e.card.MemFree(e.block) })
	e.base[scratch], e.base[control] = e.block, e.block+cuda.Ptr(inner)
	if e.pinned, err = e.card.MemHostAlloc(slots * e.plan.imageBytes()); err != nil {
		return err
	}
	e.later(func() error { return e.card.MemFreeHost(e.pinned) })
	e.base[pinned] = e.pinned.Ptr()
	return nil
}

// constants writes the Consts region, and the control block as guards want it that no run writes, after what the shared stream has been given:
// that may still use the memory for something else.
func (e *Exec) constants() error {
	err := e.join()
	if err == nil {
		err = e.card.MemsetD8(e.base[control], 0xff, e.plan.controlBytes(), e.card.Stream)
	}
	words := e.plan.program.Consts
	if len(words) == 0 || err != nil {
		return err
	}
	n := 4 * len(words)
	from, err := e.card.MemHostAlloc(n)
	if err != nil {
		return err
	}
	copy(from.Bytes(), ir.Bytes(words))
	err = e.card.MemcpyHtoD(e.base[ir.Consts], from, 0, n, e.card.Stream)
	if err == nil {
		err = e.card.StreamSynchronize(e.card.Stream)
	}
	return errors.Join(err, e.card.MemFreeHost(from))
}

// functions compiles the program's kernels.
func (e *Exec) functions() ([]cuda.Function, error) {
	if err := e.compile(); err != nil {
		return nil, err
	}
	list := make([]cuda.Function, len(e.plan.kernels))
	for i, u := range e.plan.filled() {
		m, err := e.card.ModuleLoadData(e.images[i])
		if err != nil {
			return nil, err
		}
		e.later(func() error { return e.card.ModuleUnload(m) })
		for _, k := range u.kernels {
			if list[k], err = e.card.ModuleGetFunction(m, e.plan.kernels[k]); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// compile has the plan's kernels compiled. It may be called from anywhere.
func (e *Exec) compile() (err error) {
	if e.images == nil {
		e.images, err = nvrtc.CompileAll(e.plan.sources(), arch(e.card))
	}
	return err
}

// arch is the card's architecture as compilers call it.
func arch(card *cuda.Card) string { return fmt.Sprintf("sm_%d%d", card.Major, card.Minor) }

// binder turns tasks into calls.
type binder struct {
	*Exec
	functions []cuda.Function
}

// address is where a place lies.
func (e *Exec) address(p place) cuda.Ptr { return e.base[p.base] + cuda.Ptr(p.bytes) }

func (e *Exec) collectives(t joint) []Collective {
	list := make([]Collective, len(t))
	for i, c := range t {
		list[i] = Collective{c.op, e.address(c.on), c.n}
	}
	return list
}

func (b *binder) bind(do any) func() error {
	c := b.card
	switch t := do.(type) {
	case launch:
		return b.launch(t)
	case fill:
		to := b.address(t.to)
		return func() error { return c.MemsetD32(to, t.word, t.n, b.stream) }
	case zero:
		to := b.address(t.to)
		return func() error { return c.MemsetD8(to, 0, t.bytes, b.stream) }
	case transfer:
		to, from := b.address(t.to), b.address(t.from)
		return func() error { return c.MemcpyDtoD(to, from, t.bytes, b.stream) }
	case joint:
		list := b.collectives(t)
		return func() error { return b.link.Put(b.stream, list, b.turn.early) }
	case libraryCall:
		call := t.bind(b.address)
		return func() error {
			if err := b.tools.use(b.stream); err != nil {
				return err
			}
			return call()
		}
	}
	panic(fmt.Sprintf("exec: no task %T", do))
}

// launch is the call that launches a kernel, in the turn that its task has then.
func (b *binder) launch(t launch) func() error {
	c, f := b.card, b.functions[t.kernel]
	grid, block := cuda.Dim3{X: t.blocks, Y: t.planes}, cuda.Dim3{X: cmp.Or(t.threads, threads)}
	// arguments are those of every image of pinned memory, if it takes part.
	arguments := func(more ...any) (list []*cuda.Args) {
		images := 1
		if slices.ContainsFunc(t.args, func(p place) bool { return p.base == pinned }) {
			images = slots
		}
		for image := range images {
			var values []any
			for _, p := range t.args {
				at := b.address(p)
				if p.base == pinned {
					at += cuda.Ptr(image * b.plan.imageBytes())
				}
				values = append(values, at)
			}
			list = append(list, cuda.NewArgs(append(values, more...)...))
		}
		return list
	}
	if !b.plan.turns[t.kernel] {
		args := arguments()
		return func() error { return c.LaunchKernel(f, grid, block, t.shared, b.stream, args[b.image%len(args)]) }
	}
	first, late := arguments(int32(0)), arguments(int32(1))
	return func() error {
		args, launch := first, c.LaunchKernel
		if b.turn.late {
			args = late
		}
		if b.turn.early {
			launch = c.LaunchEarly
		}
		return launch(f, grid, block, t.shared, b.stream, args[b.image%len(args)])
	}
}

// Extra is how many bytes of the card's memory the Exec holds besides the program's regions.
func (e *Exec) Extra() int64 { return e.extra }

// At is where that memory lies.
func (e *Exec) At() cuda.Ptr { return e.block }

var errClosed = errors.New("closed")

// Close frees what the Exec holds. Only the first call does something.
func (e *Exec) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	err := e.card.Do(func() error {
		return errors.Join(e.card.StreamSynchronize(e.card.Stream), e.card.StreamSynchronize(e.shared), e.release())
	})
	if err != nil {
		return fmt.Errorf("exec: card %d: close %s: %w", e.card.Ordinal, e.plan.program.Name, err)
	}
	return nil
}

// Run runs the program once; see [ir.Executable].
func (e *Exec) Run(ctx context.Context, rt *ir.Runtime) error {
	return e.do(func() error {
		s, err := e.run(ctx, rt)
		if err != nil {
			return err
		}
		return e.finish(s)
	})
}

// Start begins a run; see [ir.Starter].
func (e *Exec) Start(ctx context.Context, rt *ir.Runtime) (run uint64, err error) {
	err = e.do(func() error {
		s, err := e.run(ctx, rt)
		if err == nil {
			run = s.run
		}
		return err
	})
	return run, err
}

// Wait waits for a run that was started, and gives what it put out; see [ir.Starter]. One that is long past has been waited for by
// Start, and what it put out is gone.
func (e *Exec) Wait(run uint64, out []byte) error {
	return e.do(func() error {
		for i := range e.slots {
			s := &e.slots[i]
			if s.run != run {
				continue
			}
			if err := e.finish(s); err != nil {
				return err
			}
			if len(out) > e.plan.reported() {
				return fmt.Errorf("%d bytes asked for of what it puts out, of which %d are kept", len(out), e.plan.reported())
			}
			copy(out, e.imageOf(s.image)[e.plan.controlBytes():])
			return nil
		}
		if len(out) > 0 {
			return fmt.Errorf("run %d was %d runs ago, what it put out is gone", run, e.runs-run)
		}
		return nil
	})
}

// do does something with runs on the card's thread.
func (e *Exec) do(f func() error) error {
	err := errClosed
	if !e.closed {
		err = e.card.Do(f)
	}
	if err != nil {
		return fmt.Errorf("exec: card %d: run %s: %w", e.card.Ordinal, e.plan.program.Name, err)
	}
	return nil
}
