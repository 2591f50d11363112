package dp

import (
	"context"
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// forwardPlan is how inputs of one shape are evaluated.
type forwardPlan struct {
	progs  []*compiled // by rank that has samples
	shares []data.Range
	out    []int           // offset in bytes of each replica's output in the gathered ones
	shape  ir.Shape        // of the result
	dtype  ir.DType        //
	size   int             // of the gathered outputs in bytes; on other ranks than 0 of several processes, of the rank's own
	mem    *cudaops.Memory // the outputs on the output card; nil for the host
	bytes  []byte          // the outputs on the host
}

func (p *forwardPlan) free() error {
	if p.mem == nil {
		return nil
	}
	return p.mem.Free()
}

// Forward applies the model in evaluation mode (no dropout, running statistics) to x, see [DataParallel.Step], and gathers the
// outputs along the batch's dimension: on the output card, and from there into the result. Outputs that are scalars become a
// vector of one a replica.
//
// In a job of several processes every process calls Forward. The input is that of rank 0, and so is the result: the others pass nil and get
// nil.
func (t *DataParallel) Forward(ctx context.Context, x tensor.Tensor) (*tensor.Dense, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	if t.procs != nil {
		return t.forwardTogether(ctx, x)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	bx, err := t.input(x)
	if err != nil {
		return nil, err
	}
	plan, err := t.forwardPlan(bx.form)
	if err != nil {
		return nil, err
	}
	if err := plan.verify(bx); err != nil {
		return nil, err
	}
	if err := t.fitForward(bx.form, plan); err != nil {
		return nil, err
	}
	if err := t.team.do(ctx, &forwardJob{t, plan, bx, 0}); err != nil {
		if e := t.reconnect(ctx); e != nil {
			return nil, e
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return plan.result(t.cfg.dim)
}

// forwardTogether is Forward in a job of several processes.
func (t *DataParallel) forwardTogether(ctx context.Context, x tensor.Tensor) (*tensor.Dense, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	bx, err := t.inputOfPrimary(x)
	if err != nil {
		return nil, t.failed(err)
	}
	if err := t.together(ctx, header{call: forwardCall, x: bx.form}); err != nil {
		return nil, err
	}
	plan, err := t.evaluate(t.procs.linger.after(ctx), bx)
	if err != nil {
		return nil, t.failed(err)
	}
	if t.Rank() > 0 {
		return nil, nil
	}
	return plan.result(t.cfg.dim)
}

// evaluate scatters rank 0's batch, evaluates, and gathers the outputs there.
func (t *DataParallel) evaluate(ctx context.Context, x batch) (*forwardPlan, error) {
	whole := t.procs.headers[0].x
	plan, err := t.forwardPlan(whole)
	if err != nil {
		return nil, err
	}
	if t.Rank() == 0 {
		if err := plan.verify(x); err != nil {
			return nil, err
		}
	}
	if err := t.fitForward(whole, plan); err != nil {
		return nil, err
	}
	t.chunks(whole.shape[t.cfg.dim])
	if x, err = t.scatterBatch(ctx, &t.door.x, x, whole, t.cfg.dim); err != nil {
		return nil, err
	}
	if err := t.team.do(ctx, &forwardJob{t, plan, x, t.shares[t.Rank()].Lo}); err != nil {
		return nil, err
	}
	counts := t.procs.counts
	clear(counts)
	for r, prog := range plan.progs {
		counts[r] = prog.y.Shape.Size()
	}
	var all, mine []float32
	if t.Rank() == 0 {
		all = ir.Words[float32](plan.bytes)
		mine = all[:counts[0]]
	} else {
		mine = ir.Words[float32](plan.bytes)
	}
	return plan, t.group().Gather(ctx, all, mine, counts, 0)
}

// verify checks the whole batch.
func (p *forwardPlan) verify(x batch) error {
	for _, c := range p.progs[0].Checks {
		if err := verify(c, x); err != nil {
			return err
		}
	}
	return nil
}

// forwardPlan finds or makes the plan for inputs of that form.
func (t *DataParallel) forwardPlan(x form) (*forwardPlan, error) {
	key := fmt.Sprint(x.shape, x.ints)
	if p, ok := t.forwards[key]; ok {
		return p, nil
	}
	p, err := t.planForward(x)
	if err == nil {
		t.forwards[key] = p
	}
	return p, err
}

func (t *DataParallel) planForward(x form) (*forwardPlan, error) {
	p := &forwardPlan{shares: data.Chunks(x.shape[t.cfg.dim], t.WorldSize())}
	size := 0
	for r, s := range p.shares {
		// Of another process's program only the output's shape counts, which arenas have no part in.
		of := r
		if t.procs != nil {
			of = t.Rank()
		}
		c, out, err := t.evalProgram(of, x, s.Len())
		if err != nil {
			return nil, err
		}
		p.progs = append(p.progs, c)
		p.out = append(p.out, size)
		size += 4 * out.Shape.Size()
		if r == 0 {
			p.dtype, p.shape = out.DType, out.Shape.Clone()
			if len(p.shape) == 0 {
				p.shape = ir.Of(0)
			}
			if t.cfg.dim >= len(p.shape) {
				return nil, fmt.Errorf("dp: outputs of shape %v have no dimension %d to gather along", out.Shape, t.cfg.dim)
			}
			p.shape[t.cfg.dim] = 0
		}
		n := 1
		if len(out.Shape) > 0 {
			n = out.Shape[t.cfg.dim]
		}
		p.shape[t.cfg.dim] += n
	}
	if me := t.Rank(); me > 0 {
		if size = 0; me < len(p.progs) {
			size = 4 * p.progs[me].y.Shape.Size()
			p.out[me] = 0
		}
	}
	p.size = size
	return p, nil
}

// gathersOnCard reports whether outputs are gathered in a card's memory.
func (t *DataParallel) gathersOnCard() bool { return t.cfg.output != Host && t.procs == nil }

// fitForward loads what a plan runs, and takes memory for what it gathers.
func (t *DataParallel) fitForward(x form, p *forwardPlan) error {
	progs := t.programsOf(p.progs)
	if t.allLoaded(progs) && (p.mem != nil || p.bytes != nil) {
		return nil
	}
	get := func() error {
		if err := t.loadAll(progs); err != nil || p.mem != nil || p.bytes != nil {
			return err
		}
		if !t.gathersOnCard() {
			p.bytes = make([]byte, p.size)
			return nil
		}
		mem, err := cudaops.Alloc(t.cfg.output, int64(p.size))
		if err != nil {
			return &ReplicaError{Replica: max(0, slices.Index(t.cfg.ids, t.cfg.output)), Device: t.cfg.output, Err: fmt.Errorf("outputs: %w", err)}
		}
		p.mem = mem
		return nil
	}
	return t.fit("Forward", x.shape, thrift{parts: 1}, get, func(samples int, _ thrift) (demand, error) {
		x := form{x.ints, slices.Clone(x.shape)}
		x.shape[t.cfg.dim] = samples
		p, err := t.planForward(x)
		if err != nil {
			return demand{}, err
		}
		d := demand{programs: t.programsOf(p.progs)}
		if t.gathersOnCard() {
			d.gathered = int64(p.size)
		}
		return d, nil
	})
}

// programsOf are the programs that the ranks of this process run, of those of the first ranks of all.
func (t *DataParallel) programsOf(all []*compiled) [][]*ir.Program {
	progs := make([][]*ir.Program, len(t.team.ranks))
	for i, r := range t.team.ranks {
		if r.index < len(all) {
			progs[i] = []*ir.Program{all[r.index].Program}
		}
	}
	return progs
}

// forwardJob evaluates on every rank that has samples.
type forwardJob struct {
	t     *DataParallel
	plan  *forwardPlan
	x     batch
	first int // number, in the whole batch, of the first sample of x
}

func (j *forwardJob) run(ctx context.Context, r *rank) error {
	p := j.plan
	if r.index >= len(p.shares) {
		return nil
	}
	l := r.execs[p.progs[r.index].Program]
	share := p.shares[r.index]
	here := data.Range{Lo: share.Lo - j.first, Hi: share.Hi - j.first}
	if err := scatter(l.mem[ir.Input].Write, p.progs[r.index].x.Offset, j.x, j.t.cfg.dim, here); err != nil {
		return err
	}
	if err := r.ready(l, len(p.shares), ir.Runtime{Seed: j.t.cfg.seed, FirstSample: share.Lo}); err != nil {
		return err
	}
	if err := l.exec.Run(ctx, &l.rt); err != nil {
		return err
	}
	n := 4 * p.progs[r.index].y.Shape.Size()
	into := p.bytes
	if p.mem != nil {
		into = p.mem.Host()
	}
	if into != nil {
		return l.mem[ir.Output].Read(0, into[p.out[r.index]:][:n])
	}
	stage := make([]byte, n)
	if err := l.mem[ir.Output].Read(0, stage); err != nil {
		return err
	}
	return p.mem.Write(int64(p.out[r.index]), stage)
}

// result joins the replicas' outputs along dim.
func (p *forwardPlan) result(dim int) (*tensor.Dense, error) {
	n := p.shape.Size()
	floats, ints := []float32(nil), []int32(nil)
	var dst []byte
	if p.dtype == ir.I32 {
		ints = make([]int32, n)
		dst = ir.Bytes(ints)
	} else {
		floats = make([]float32, n)
		dst = ir.Bytes(floats)
	}
	src := p.bytes
	if p.mem != nil {
		src = make([]byte, 4*n)
		if err := p.mem.Read(0, src); err != nil {
			return nil, err
		}
	}
	inner, outer := 4, 1
	for _, d := range p.shape[dim+1:] {
		inner *= d
	}
	for _, d := range p.shape[:dim] {
		outer *= d
	}
	row := p.shape[dim] * inner
	at := 0
	for r, prog := range p.progs {
		piece := 4 * prog.y.Shape.Size() / outer
		for o := range outer {
			copy(dst[o*row+at:][:piece], src[p.out[r]+o*piece:])
		}
		at += piece
	}
	shape := tensor.WithShape(slices.Clone(p.shape)...)
	if p.dtype == ir.I32 {
		return tensor.New(shape, tensor.WithBacking(ints)), nil
	}
	return tensor.New(shape, tensor.WithBacking(floats)), nil
}
