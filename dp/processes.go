package dp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/job"
)

// session connects the processes of a job: [comm.Session].
type session interface {
	Rank() int
	Size() int
	// NewGroup makes a group of all ranks, of which each calls it, with facts on which they must agree.
	NewGroup(ctx context.Context, facts []comm.Fact) (comm.Comm, error)
}

// processes is what a trainer knows of the job whose processes train together, one rank each.
type processes struct {
	place   *job.Place
	session session
	facts   []comm.Fact
	broken  bool // the group is: the next call makes a new one
	failed  bool // the launcher has heard of an error

	words   []int32  // headers, as they are exchanged
	headers []header // of all ranks, in the call in progress
	counts  []int    // elements, of all ranks, in a scatter or gather
	linger  linger
}

// The session of this process. It is made by the first trainer and lives as long as the process: when its connections end, the other
// processes know that this one has.
var joined struct {
	sync.Mutex
	session *comm.Session
}

// join connects this process with the others of its job. It is nil for a process that trains by itself.
func (c *config) join() (*processes, error) {
	if c.session != nil {
		return newProcesses(&job.Place{Rank: c.session.Rank(), World: c.session.Size()}, c.session), nil
	}
	if c.alone {
		return nil, nil
	}
	place, err := job.Lookup(os.LookupEnv)
	if err != nil || place == nil || place.World == 1 {
		return nil, err
	}
	return newProcesses(place, nil), nil
}

func newProcesses(place *job.Place, s session) *processes {
	return &processes{
		place: place, session: s,
		words:   make([]int32, headerWords*place.World),
		headers: make([]header, place.World),
		counts:  make([]int, place.World),
	}
}

// untilTold is the context in which New waits for other processes: it ends when this one is told to end. A program that takes signals
// itself, and ends a context of its own, could not end New, unless it is package launcher; one that does not take them ends by New's error.
// What the program ignores stays ignored.
func untilTold() (context.Context, context.CancelFunc) {
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM}, signal.Ignored)
	if len(signals) == 0 { // which NotifyContext takes for all
		return context.WithCancel(job.Told())
	}
	return signal.NotifyContext(job.Told(), signals...)
}

// connect waits for the other processes, the first time.
func (p *processes) connect(ctx context.Context, opts ...comm.Option) error {
	if p.session != nil {
		return nil
	}
	joined.Lock()
	defer joined.Unlock()
	if joined.session == nil {
		s, err := comm.Connect(ctx, p.place, opts...)
		if err != nil {
			return err
		}
		joined.session = s
	}
	p.session = joined.session
	return nil
}

// facts are what the ranks must agree on, in the order in which a difference is worth telling.
func (t *DataParallel) agreement() []comm.Fact {
	c, l := &t.cfg, t.compiler.Layout
	facts := []comm.Fact{
		{Name: "the version of tandem", Value: version()},
		{Name: "the model's type", Value: fmt.Sprintf("%T", t.compiler.Model)},
	}
	for i := len(l.Params) - 1; i >= 0; i-- {
		facts = append(facts, comm.Fact{Name: "parameter " + l.Params[i].Name, Value: fmt.Sprint([]int(l.Params[i].Slot.Shape))})
	}
	for _, b := range l.Buffers {
		facts = append(facts, comm.Fact{Name: "buffer " + b.Name, Value: fmt.Sprint([]int(b.Slot.Shape))})
	}
	bucket := "by the gradients' size"
	if c.bucket != nil {
		bucket = fmt.Sprint(*c.bucket)
	}
	facts = append(facts,
		comm.Fact{Name: "the loss", Value: describe(t.compiler.Loss)},
		comm.Fact{Name: "the optimizer", Value: describe(t.compiler.Optimizer)},
		comm.Fact{Name: "the schedule", Value: describe(c.schedule)},
		comm.Fact{Name: "the clipping", Value: describe(c.clip)},
		comm.Fact{Name: "the strategy", Value: c.strategy.String()},
		comm.Fact{Name: "the precision", Value: c.precise.String()},
		comm.Fact{Name: "whether gradients lie in 16 bits", Value: fmt.Sprint(t.compiler.Apart())},
		comm.Fact{Name: "the buckets' bytes", Value: bucket},
		comm.Fact{Name: "the seed", Value: fmt.Sprint(c.seed)},
		comm.Fact{Name: "the number of micro-batches", Value: fmt.Sprint(c.micro)},
		comm.Fact{Name: "whether steps are split where memory is short", Value: fmt.Sprint(c.auto)},
		comm.Fact{Name: "the dimension of the batch", Value: fmt.Sprint(c.dim)},
	)
	return facts
}

// version is that of this module, as far as the program knows it.
func version() string {
	const path = "github.com/tandem-train/tandem"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}

// addresses are what is different in every process when pointers and functions are printed.
var addresses = regexp.MustCompile(`0x[0-9a-f]+`)

// describe prints a loss, an optimizer or the like with its settings.
func describe(v any) string {
	if v == nil {
		return "none"
	}
	if r := reflect.ValueOf(v); r.Kind() == reflect.Pointer && !r.IsNil() {
		return addresses.ReplaceAllString(fmt.Sprintf("%T%+v", v, r.Elem()), "")
	}
	return addresses.ReplaceAllString(fmt.Sprintf("%T%+v", v, v), "")
}

// ready makes the group anew if it is broken.
func (t *DataParallel) ready(ctx context.Context) error {
	if t.procs == nil || !t.procs.broken {
		return nil
	}
	if err := t.reconnect(ctx); err != nil {
		return t.failed(err)
	}
	return nil
}

// newGroup makes a group of all ranks, for the only rank of this process.
func (p *processes) newGroup(ctx context.Context, updates int) (comm.Comm, error) {
	facts := append(slices.Clip(p.facts), comm.Fact{Name: "the number of steps done", Value: fmt.Sprint(updates)})
	g, err := p.session.NewGroup(ctx, facts)
	p.broken = err != nil
	return g, err
}

// failed takes an error of a call that ranks make together: the others must not wait for this one, and the launcher hears of it.
func (t *DataParallel) failed(err error) error {
	p := t.procs
	if p == nil {
		return err
	}
	t.team.abort(err)
	p.broken = true
	return errors.Join(err, p.report(err))
}

// report leaves an error of this rank for the launcher.
func (p *processes) report(err error) error {
	p.failed = true
	f := job.Failure{Error: err.Error()}
	var broken *comm.BrokenError
	var elsewhere *elsewhereError
	switch {
	case errors.As(err, &broken) && broken.Rank != p.place.Rank:
		f.Consequence, f.By = true, broken.Rank
	case errors.As(err, &elsewhere):
		f.Consequence = true // by rank 0
	}
	return p.place.Report(f)
}
