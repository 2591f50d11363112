package dp

import (
	"context"
	"errors"
	"slices"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/internal/ir"
)

// loaded is a program on a rank, with the memory that is its own.
type loaded struct {
	exec ir.Executable
	mem  [ir.NumRegions]ir.DeviceMemory
	work *arena     // nil: none
	rt   ir.Runtime // of the run in progress

	// What is there already, and need not be brought again: scalars, and a part of a batch that lies on the cards.
	hyper []float32
	holds placed
}

// arena is memory for what programs have between their steps. The programs of a rank run one after the other, and what is in the arena
// means nothing after a run, so they share it.
type arena struct {
	ir.DeviceMemory
	users int
}

// ours lists the regions that belong to the rank; the others belong to a program, but for Work, see arena.
var ours = []ir.Region{ir.Params, ir.Grads, ir.State, ir.Buffers}

// theirs lists the regions that belong to a program.
var theirs = []ir.Region{ir.Hyper, ir.Input, ir.Output, ir.Consts}

// workBytes is the size of the arena that the programs share.
func workBytes(progs []*ir.Program) (n int64) {
	for _, p := range progs {
		n = max(n, p.Bytes(ir.Work))
	}
	return n
}

// request is memory that loading programs takes.
type request struct {
	prog   *ir.Program // nil: the arena
	region ir.Region
	bytes  int64
}

func (q request) String() string {
	if q.prog == nil {
		return "programs: " + q.region.String()
	}
	return q.prog.Name + ": " + q.region.String()
}

// requests lists what programs that are to be loaded take, in the order in which it is taken, where those arenas are there.
func requests(arenas []*arena, progs []*ir.Program) (list []request) {
	if n := workBytes(progs); n > 0 && arenaOf(arenas, n) == nil {
		list = append(list, request{nil, ir.Work, n})
	}
	for _, p := range progs {
		for _, region := range theirs {
			if n := p.Bytes(region); n > 0 {
				list = append(list, request{p, region, n})
			}
		}
	}
	return list
}

// arenaOf is the smallest arena of at least so many bytes, nil if there is none.
func arenaOf(arenas []*arena, bytes int64) (best *arena) {
	for _, a := range arenas {
		if a.Len() >= bytes && (best == nil || a.Len() < best.Len()) {
			best = a
		}
	}
	return best
}

// missing are those of the programs that are not loaded.
func (r *rank) missing(progs []*ir.Program) (out []*ir.Program) {
	for _, p := range progs {
		if r.execs[p] == nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// load loads those of the programs that are not: all of them, or on error none. Where the device's memory is short, other programs are
// unloaded, and come back when they are wanted, the second input is given up, and what the allocator has cached is given back.
func (r *rank) load(progs []*ir.Program) error {
	missing := r.missing(progs)
	err := r.tryLoad(missing)
	if !isFull(err) {
		return err
	}
	if err := r.unload(func(p *ir.Program) bool { return !slices.Contains(progs, p) }); err != nil {
		return err
	}
	if r.second.mem != nil {
		if err := r.second.giveUp(r.dev); err != nil {
			return err
		}
	}
	if err := cudaops.EmptyCache(r.dev.ID()); err != nil {
		return err
	}
	if err = r.tryLoad(missing); isFull(err) {
		err = errors.Join(err, cudaops.EmptyCache(r.dev.ID()))
	}
	return err
}

func (r *rank) tryLoad(progs []*ir.Program) (err error) {
	fresh := make([]*loaded, len(progs))
	for i := range fresh {
		fresh[i] = new(loaded)
	}
	defer func() {
		if err == nil {
			return
		}
		for _, l := range fresh {
			err = errors.Join(err, r.release(l))
		}
		err = errors.Join(err, r.sweep())
	}()
	for _, q := range requests(r.arenas, progs) {
		m, err := alloc(r.dev, q.String(), q.bytes)
		if err != nil {
			return err
		}
		if q.prog == nil {
			r.arenas = append(r.arenas, &arena{DeviceMemory: m})
		} else {
			fresh[slices.Index(progs, q.prog)].mem[q.region] = m
		}
	}
	r.share(fresh, progs)
	for i, p := range progs {
		l, mem := fresh[i], r.mem
		for _, region := range theirs {
			mem[region] = l.mem[region]
		}
		if l.work != nil {
			mem[ir.Work] = l.work.DeviceMemory
		}
		if l.exec, err = r.dev.Load(p, mem); err != nil {
			return err
		}
	}
	for i, p := range progs {
		r.execs[p] = fresh[i]
	}
	return nil
}

// share gives programs the arena that is large enough for all of them.
func (r *rank) share(fresh []*loaded, progs []*ir.Program) {
	work := arenaOf(r.arenas, workBytes(progs))
	for i, p := range progs {
		if p.Size[ir.Work] > 0 {
			fresh[i].work = work
			work.users++
		}
	}
}

// unload gives back programs.
func (r *rank) unload(which func(*ir.Program) bool) error {
	var errs []error
	for p, l := range r.execs {
		if which(p) {
			errs = append(errs, r.release(l))
			delete(r.execs, p)
		}
	}
	return errors.Join(append(errs, r.sweep())...)
}

// release gives back what a program holds, but for its arena, see sweep.
func (r *rank) release(l *loaded) error {
	var errs []error
	if l.exec != nil {
		errs = append(errs, l.exec.Close())
	}
	for _, m := range l.mem {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	if l.work != nil {
		l.work.users--
	}
	return errors.Join(errs...)
}

// sweep gives back arenas that no program uses.
func (r *rank) sweep() error {
	var errs []error
	r.arenas = slices.DeleteFunc(r.arenas, func(a *arena) bool {
		if a.users > 0 {
			return false
		}
		errs = append(errs, a.Free())
		return true
	})
	return errors.Join(errs...)
}

// loadJob loads what each rank of this process is to run, or on error nothing.
type loadJob struct {
	first int             // rank
	progs [][]*ir.Program // by rank
	fresh [][]*ir.Program // those that were not there
	errs  []error
}

func (j *loadJob) run(_ context.Context, r *rank) error {
	i := r.index - j.first
	j.fresh[i] = r.missing(j.progs[i])
	j.errs[i] = r.load(j.progs[i])
	return nil // so that the group stays whole
}

// undoJob unloads what a loadJob has loaded before it failed elsewhere.
type undoJob struct{ *loadJob }

func (j undoJob) run(_ context.Context, r *rank) error {
	if i := r.index - j.first; j.errs[i] == nil {
		return r.unload(func(p *ir.Program) bool { return slices.Contains(j.fresh[i], p) })
	}
	return nil
}

// allLoaded reports whether the ranks of this process have all of their programs loaded.
func (t *DataParallel) allLoaded(progs [][]*ir.Program) bool {
	for i, r := range t.team.ranks {
		for _, p := range progs[i] {
			if r.execs[p] == nil {
				return false
			}
		}
	}
	return true
}

// loadAll loads programs on the ranks of this process: all, or on error none.
func (t *DataParallel) loadAll(progs [][]*ir.Program) error {
	_ = t.settleAll() // what is under way needs its programs; whoever wants to know asks the Loss
	n := len(progs)
	j := &loadJob{first: t.Rank(), progs: progs, fresh: make([][]*ir.Program, n), errs: make([]error, n)}
	if err := t.team.do(context.Background(), j); err != nil {
		return err
	}
	for i, err := range j.errs {
		if err != nil {
			r := t.team.ranks[i]
			failed := &ReplicaError{Replica: r.index, Device: r.dev.ID(), Err: err}
			if err := t.team.do(context.Background(), undoJob{j}); err != nil {
				return errors.Join(failed, err)
			}
			return failed
		}
	}
	return nil
}
