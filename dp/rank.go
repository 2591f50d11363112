package dp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
)

// rank is one (process, card) pair: a device, the model's arenas on it, and the programs loaded there. Its work is done on one goroutine
// at a time, locked to a thread, as cards want it.
type rank struct {
	index  int // among the ranks of all processes
	dev    ir.Device
	group  comm.Comm // all ranks
	link   ir.Link   // of the device to theirs, or nil
	mem    [ir.NumRegions]ir.DeviceMemory
	comms  map[int]ir.Comm // what programs reach the group by, by the number of ranks that have samples
	execs  map[*ir.Program]*loaded
	arenas []*arena // of the loaded programs
	tasks  chan task

	second second

	exchanged atomic.Int64 // nanoseconds in collectives
}

// task is work that every rank does its part of.
type task interface {
	run(ctx context.Context, r *rank) error
}

// team runs tasks on all ranks of this process and joins them. The caller does the first rank's part; each other rank has a goroutine: what
// a step on a small model takes is little more than waking one.
type team struct {
	ranks   []*rank
	errs    []error
	loss    [4]byte         // room to read the first rank's
	ctx     context.Context // of the task in progress
	looks   int             // how often who waits looks before it sleeps
	working atomic.Int32    // ranks that have not done their part of the task in progress, but the first
	done    sync.WaitGroup
	ended   sync.WaitGroup
}

// looks is how often who waits for a rank of the process, or for the next task, looks before it sleeps: some 200 µs. To wake it may take
// 100, as long as two steps of a small model that cards have ahead; so who has tasks more often than that stays awake. On the host ranks share
// the cores with those that compute; there they sleep at once.
const looks = 200_000

func (t *team) start() {
	t.errs = make([]error, len(t.ranks))
	if _, card := t.ranks[0].dev.(ir.Joiner); card && len(t.ranks) <= runtime.GOMAXPROCS(0) {
		t.looks = looks
	}
	for i, r := range t.ranks[1:] {
		r.tasks = make(chan task, 1)
		t.ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for {
				t.look(func() bool { return len(r.tasks) > 0 })
				j, more := <-r.tasks
				if !more {
					return
				}
				t.errs[1+i] = t.guard(j, r)
				t.working.Add(-1)
				t.done.Done()
			}
		})
	}
}

// look returns when something is so, or after some time.
func (t *team) look(so func() bool) {
	for range t.looks {
		if so() {
			return
		}
	}
}

// guard runs a rank's part of a task. When it fails the others are told, so that none waits for this one.
func (t *team) guard(j task, r *rank) error {
	err := j.run(t.ctx, r)
	if err != nil && r.group != nil {
		r.group.Abort(err)
	}
	return err
}

// do runs j on every rank, joins them, and returns the lowest failing rank's error. A rank that failed only because another one
// did is not the one to name.
func (t *team) do(ctx context.Context, j task) error {
	t.ctx = ctx
	others := t.ranks[1:]
	t.done.Add(len(others))
	t.working.Store(int32(len(others)))
	for _, r := range others {
		r.tasks <- j
	}
	runtime.LockOSThread()
	t.errs[0] = t.guard(j, t.ranks[0])
	runtime.UnlockOSThread()
	t.look(func() bool { return t.working.Load() == 0 })
	t.done.Wait()
	t.ctx = nil
	return t.first(t.errs)
}

// first is the error that stands for those of all ranks, or nil.
func (t *team) first(errs []error) error {
	var first *ReplicaError
	for i, err := range errs {
		if err == nil {
			continue
		}
		var consequence *comm.BrokenError
		if first == nil || errors.As(first.Err, &consequence) && !errors.As(err, &consequence) {
			first = &ReplicaError{Replica: t.ranks[i].index, Device: t.ranks[i].dev.ID(), Err: err}
		}
	}
	if first == nil {
		return nil
	}
	return first
}

// lossRead is the loss that the first rank has read.
func (t *team) lossRead() float64 {
	return float64(math.Float32frombits(binary.NativeEndian.Uint32(t.loss[:])))
}

// abort breaks the ranks' group, so that no other process waits for them.
func (t *team) abort(cause error) {
	for _, r := range t.ranks {
		r.group.Abort(cause)
	}
}

func (t *team) stop() {
	for _, r := range t.ranks[1:] {
		close(r.tasks)
	}
	t.ended.Wait()
}

// alloc takes the rank's memory for a region; nothing where its size is 0.
func alloc(dev ir.Device, what string, bytes int64) (ir.DeviceMemory, error) {
	if bytes == 0 {
		return nil, nil
	}
	m, err := dev.Alloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return m, nil
}

// programComm is how a program's collectives reach the other ranks, of which the first active have samples.
func (r *rank) programComm(active int) (ir.Comm, error) {
	if r.group.Size() == 1 {
		return nil, nil
	}
	if c, ok := r.comms[active]; ok {
		return c, nil
	}
	c, err := comm.ForProgram(r.group, active)
	if err != nil {
		return nil, err
	}
	t := timed{c, &r.exchanged}
	r.comms[active] = t
	return t, nil
}

// free gives back all that the rank holds.
func (r *rank) free() error {
	var errs []error
	for _, l := range r.execs {
		errs = append(errs, r.release(l))
	}
	errs = append(errs, r.sweep())
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	errs = append(errs, r.second.free())
	for _, m := range r.mem {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	if r.dev != nil {
		errs = append(errs, r.dev.Close())
	}
	return errors.Join(errs...)
}
