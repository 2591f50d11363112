package ref

import (
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// Env is what a graph is evaluated in: one rank's memory, and what differs from run to run.
type Env struct {
	Memory  [ir.NumRegions][]float64
	Runtime ir.Runtime // Comm is not used
	// Idle says that the rank has no samples in this step, so it takes no part in collectives among active ranks.
	Idle bool
	// Round, if set, may change each value right after it is made. So a test sees how far roundings carry.
	Round func(v *ir.Value, x []float64)
}

// NewEnv returns an Env of zeros with size[r] elements in region r.
func NewEnv(size [ir.NumRegions]int) *Env {
	var e Env
	for r, n := range size {
		e.Memory[r] = make([]float64, n)
	}
	return &e
}

// At returns the content of slot s, to read or to change.
func (e *Env) At(s *ir.Slot) []float64 { return e.Memory[s.Region][s.Offset:s.End():s.End()] }

// Eval runs the parts in order for a rank that is alone.
func Eval(e *Env, parts ...ir.Part) error {
	return EvalRanks([]*Env{e}, [][]ir.Part{parts})
}

// Values returns every value of g, by ID, for a rank that is alone. Nothing is stored.
func Values(e *Env, g *ir.Graph) ([][]float64, error) {
	ev := evaluator{env: e, parts: []ir.Part{{Graph: g}}}
	for len(ev.values) < len(g.Values) {
		if _, err := ev.next(g.Values[len(ev.values)]); err != nil {
			return nil, err
		}
	}
	return ev.values, nil
}

// EvalRanks runs parts[r] on envs[r] for all ranks r, in lockstep: a collective happens when every rank that takes part in
// it has come to it. The ranks' parts may differ in shapes, not in the order of their collectives.
func EvalRanks(envs []*Env, parts [][]ir.Part) error {
	evs := make([]evaluator, len(envs))
	for r := range evs {
		evs[r] = evaluator{env: envs[r], parts: parts[r]}
	}
	for {
		met := make([]*meeting, len(evs))
		var now *meeting // an active rank's, if any has one: idle ranks may be ahead
		for r := range evs {
			m, err := evs[r].untilMeeting()
			if err != nil {
				return err
			}
			met[r] = m
			if m != nil && (now == nil || !envs[r].Idle) {
				now = m
			}
		}
		if now == nil {
			return nil
		}
		if err := meet(met, evs, now.op); err != nil {
			return err
		}
	}
}

// meeting is a collective that a rank has come to, with its own data.
type meeting struct {
	op   ir.Collective
	data []float64
}

// meet carries out op among the ranks that take part. The others, idle, have come to a later collective or to their end.
func meet(met []*meeting, evs []evaluator, op ir.Collective) error {
	var bufs [][]float64
	root := 0
	for r, m := range met {
		if op.ActiveOnly && evs[r].env.Idle {
			evs[r].waiting = m
			continue
		}
		if m == nil || m.op != op {
			return fmt.Errorf("ref: rank %d has come to another place than %s", r, op.Kind)
		}
		if r == op.Root {
			root = len(bufs)
		}
		bufs = append(bufs, m.data)
	}
	if named := op.Kind == ir.ReduceTo || op.Kind == ir.BroadcastFrom; named && op.ActiveOnly && evs[op.Root].env.Idle {
		return fmt.Errorf("ref: %s: the root, rank %d, is idle", op.Kind, op.Root)
	}
	for r, b := range bufs {
		if len(b) != len(bufs[0]) {
			return fmt.Errorf("ref: %s: %d elements on rank %d, %d on the first", op.Kind, len(b), r, len(bufs[0]))
		}
	}
	collective(op.Kind, root, bufs)
	return nil
}

// collective is the meaning of the collectives: bufs[r] is the range of rank r.
func collective(kind ir.CollectiveKind, root int, bufs [][]float64) {
	n := len(bufs[0])
	sum := make([]float64, n)
	for _, b := range bufs {
		for i := range sum {
			sum[i] += b[i]
		}
	}
	source := slices.Clone(bufs[root])
	whole := make([]float64, n)
	for r, b := range bufs {
		lo, hi := ir.ShareOf(n, r, len(bufs))
		copy(whole[lo:hi], b[lo:hi])
	}
	for r, b := range bufs {
		lo, hi := ir.ShareOf(n, r, len(bufs))
		switch kind {
		case ir.AllReduce:
			copy(b, sum)
		case ir.ReduceTo:
			if r == root {
				copy(b, sum)
			}
		case ir.BroadcastFrom:
			copy(b, source)
		case ir.ReduceScatter:
			copy(b[lo:hi], sum[lo:hi])
		case ir.AllGather:
			copy(b, whole)
		}
	}
}

// evaluator is one rank on its way through its parts.
type evaluator struct {
	env     *Env
	parts   []ir.Part
	values  [][]float64 // of the graph that stands first in parts
	waiting *meeting    // a collective come to already
}

// untilMeeting runs up to the next collective that the rank takes part in; nil is the end.
func (ev *evaluator) untilMeeting() (*meeting, error) {
	if m := ev.waiting; m != nil {
		ev.waiting = nil
		return m, nil
	}
	for len(ev.parts) > 0 {
		p := ev.parts[0]
		if p.Collective != nil {
			ev.parts = ev.parts[1:]
			if p.Collective.ActiveOnly && ev.env.Idle {
				continue
			}
			return &meeting{*p.Collective, ev.env.At(p.On)}, nil
		}
		for len(ev.values) < len(p.Graph.Values) {
			m, err := ev.next(p.Graph.Values[len(ev.values)])
			if m != nil || err != nil {
				return m, err
			}
		}
		for _, st := range p.Graph.Stores {
			copy(ev.env.At(st.Slot), ev.values[st.Value.ID])
		}
		ev.parts, ev.values = ev.parts[1:], nil
	}
	return nil, nil
}

// next appends the value of v. An AllReduceSum's value is the rank's own until the meeting that is returned has taken place.
func (ev *evaluator) next(v *ir.Value) (*meeting, error) {
	args := make([]tensor, len(v.Args))
	for i, a := range v.Args {
		args[i] = tensor{a.Shape, ev.values[a.ID]}
	}
	if op, ok := v.Op.(ir.AllReduceSum); ok {
		own := slices.Clone(args[0].x)
		ev.values = append(ev.values, own)
		if !op.All && ev.env.Idle {
			return nil, nil
		}
		return &meeting{ir.Collective{Kind: ir.AllReduce, ActiveOnly: !op.All}, own}, nil
	}
	out := tensor{v.Shape, make([]float64, v.Shape.Size())}
	err := ev.apply(v.Op, args, out)
	if ev.env.Round != nil {
		ev.env.Round(v, out.x)
	}
	ev.values = append(ev.values, out.x)
	return nil, err
}

// apply sets out, which is zero, to op of args.
func (ev *evaluator) apply(op ir.Op, args []tensor, out tensor) error {
	switch op := op.(type) {
	case ir.Read:
		copy(out.x, ev.env.At(op.Slot))
	case ir.Const:
		constant(op, out)
	case ir.Data:
		data(op, out)
	case ir.Iota:
		position(op, out)
	case ir.Rand:
		random(op, &ev.env.Runtime, out)
	case ir.Map:
		mapped(op, args, out)
	case ir.CheckIndex:
		copy(out.x, args[0].x)
		return checkIndex(op, args[0])
	case ir.Reshape:
		copy(out.x, args[0].x)
	case ir.Transpose:
		transpose(op, args[0], out)
	case ir.Slice:
		slice(op, args[0], out)
	case ir.Broadcast:
		broadcast(args[0], out)
	case ir.Concat:
		concat(op, args, out)
	case ir.Unslice:
		unslice(op, args[0], out)
	case ir.Gather:
		gather(args[0], args[1], out)
	case ir.ScatterAdd:
		scatterAdd(args[0], args[1], out)
	case ir.Reduce:
		reduce(op, args[0], out)
	case ir.ArgMax:
		argMax(op, args[0], out)
	case ir.MatMul:
		matMul(args[0], args[1], out)
	case ir.Conv2d:
		inNCHW(op.Conv, args, out, func(args []tensor, out tensor) { conv2d(op.Conv, args[0], args[1], out) })
	case ir.Conv2dGradX:
		inNCHW(op.Conv, args, out, func(args []tensor, out tensor) { conv2dGradX(op.Conv, args[0], args[1], out) })
	case ir.Conv2dGradW:
		inNCHW(op.Conv, args, out, func(args []tensor, out tensor) { conv2dGradW(op.Conv, args[0], args[1], out) })
	case ir.Pool2d:
		inNCHW(op.Pool, args, out, func(args []tensor, out tensor) { pool2d(op, args[0], out) })
	case ir.PoolPlaces:
		poolPlaces(op, args[0], out)
	case ir.Pool2dGrad:
		if op.Placed {
			placedGrad(op, args[0], args[1], out)
			return nil
		}
		inNCHW(op.Pool, args, out, func(args []tensor, out tensor) { pool2dGrad(op, args, out) })
	case ir.Softmax:
		softmax(op, args[0], out)
	case ir.SoftmaxGrad:
		softmaxGrad(op, args[0], args[1], out)
	case ir.CrossEntropy:
		crossEntropy(op, args[0], args[1], args[2], out)
	case ir.CrossEntropyGrad:
		crossEntropyGrad(op, args[0], args[1], args[2], args[3], out)
	default:
		panic(fmt.Sprintf("ref: no meaning for %T", op))
	}
	return nil
}
