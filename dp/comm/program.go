package comm

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-train/tandem/internal/ir"
)

// program is how a program's collectives reach a group.
type program struct {
	all    Comm
	active Comm // nil: this rank has no samples
}

var _ ir.Peers = (*program)(nil)

// What follows is of the group of all ranks.

func (p *program) Rank() int            { return p.all.Rank() }
func (p *program) Size() int            { return p.all.Size() }
func (p *program) Limit() time.Duration { return p.all.Limit() }
func (p *program) Err() error           { return p.all.Err() }

// ForProgram returns what a program of rank all.Rank() runs its collectives with, in a step in which the first active ranks
// have samples, 0 <= active <= all.Size(). Calls among the active ranks only do nothing on the others. Make it once for
// each number of active ranks and keep it.
func ForProgram(all Comm, active int) (ir.Peers, error) {
	if active < 0 || active > all.Size() {
		return nil, fmt.Errorf("comm: %d active ranks in a group of %d", active, all.Size())
	}
	p := &program{all: all}
	if all.Rank() < active {
		sub, err := all.Sub(active)
		if err != nil {
			return nil, err
		}
		p.active = sub
	}
	return p, nil
}

// Collective implements [ir.Comm].
func (p *program) Collective(ctx context.Context, op ir.Collective, buf []float32) error {
	c := p.all
	if op.ActiveOnly {
		c = p.active
	}
	if c == nil {
		return nil
	}
	switch op.Kind {
	case ir.AllReduce:
		return c.AllReduce(ctx, buf)
	case ir.ReduceTo:
		return c.Reduce(ctx, buf, op.Root)
	case ir.BroadcastFrom:
		return c.Broadcast(ctx, buf, op.Root)
	case ir.ReduceScatter:
		return c.ReduceScatter(ctx, buf)
	case ir.AllGather:
		return c.AllGather(ctx, buf)
	}
	panic(fmt.Sprintf("comm: unknown kind of collective %d", uint8(op.Kind)))
}
