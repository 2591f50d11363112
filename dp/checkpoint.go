package dp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// A checkpoint is a file in the safetensors format. It has the model's tensors under their names, and beside them
//
//	optimizer/STATE/PARAMETER  what the optimizer remembers of a parameter, in its shape
//	optimizer/loss_scale       in FP16: the scale, the good steps since it changed, and the steps that were skipped
//
// Its metadata say the optimizer's name and the number of steps. Nothing in it depends on how many ranks there are, or on their strategy.
const (
	optimizerPrefix = "optimizer/"
	lossScaleName   = optimizerPrefix + "loss_scale"
	optimizerKey    = "tandem.optimizer"
	stepsKey        = "tandem.steps"
)

func stateName(state, parameter string) string { return optimizerPrefix + state + "/" + parameter }

// checkpoint is what training goes on from, but for the model's values.
type checkpoint struct {
	state [][]float32 // what the optimizer remembers, by kind, each as long as the parameter arena
	scale []float32   // nil: none
	steps int
}

// SaveCheckpoint writes a file with all that training goes on from: the parameters and buffers, what the optimizer remembers, the number of
// steps and, with [nn.FP16], the scale of the loss. It is in the safetensors format and has the model's tensors under the names of
// [DataParallel.StateDict]; so [nn.LoadSafetensors], not strict, reads the model by itself. The file appears whole or not at all: an older
// one of that name stands until then.
//
// In a job of several processes every process calls SaveCheckpoint. Rank 0 writes, where its path says, and all return its error.
func (t *DataParallel) SaveCheckpoint(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx := context.Background()
	if err := t.meet(ctx, saveCall); err != nil {
		return err
	}
	c := &checkpoint{steps: t.updates}
	if err := t.remembered(ctx, c); err != nil {
		return t.failed(err)
	}
	var err error
	if t.Rank() == 0 {
		err = t.writeCheckpoint(path, c)
	}
	if _, err := t.told(ctx, 0, err); err != nil {
		return t.reported(fmt.Errorf("dp: save checkpoint: %w", err))
	}
	return nil
}

// LoadCheckpoint goes on from what [DataParallel.SaveCheckpoint] has written: the next step is the one that would have followed then. The
// model and the kind of optimizer must be the same; ranks, strategy and precision may be others. With the same options, batches and number
// of ranks training comes to the same bits. Settings of the optimizer, the schedule and the seed are this trainer's, and where to go
// on among the batches is for the caller to say, by [DataParallel.Steps].
//
// Where there is no such file the error is an [fs.ErrNotExist]. When a file is refused nothing has changed. After another failure the trainer gives a
// [*TornError] from there on.
//
// In a job of several processes every process calls LoadCheckpoint. Rank 0 reads, where its path says, and all return its error.
func (t *DataParallel) LoadCheckpoint(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx := context.Background()
	if err := t.meet(ctx, resumeCall); err != nil {
		return err
	}
	var c *checkpoint
	var err error
	steps := 0
	if t.Rank() == 0 {
		if c, err = t.readCheckpoint(path); err == nil {
			steps = c.steps
		}
	}
	if steps, err = t.told(ctx, steps, err); err != nil {
		err = fmt.Errorf("dp: load checkpoint: %w", err)
		if errors.Is(err, fs.ErrNotExist) { // which many expect
			return err
		}
		return t.reported(err)
	}
	if err := t.remember(ctx, c); err != nil {
		t.torn = &TornError{fmt.Errorf("a checkpoint was loaded by half: %w", t.failed(err))}
		return t.torn
	}
	t.updates = steps
	return nil
}

// writeCheckpoint is rank 0's part of saving.
func (t *DataParallel) writeCheckpoint(path string, c *checkpoint) error {
	if err := t.pull(); err != nil {
		return err
	}
	s, err := nn.StateDict(t.compiler.Model)
	if err != nil {
		return err
	}
	for _, name := range s.Names() {
		if strings.HasPrefix(name, optimizerPrefix) {
			return fmt.Errorf("the model's %s would be taken for the optimizer's, whose names begin with %q: name it otherwise, with a tag `nn:\"...\"`", name, optimizerPrefix)
		}
	}
	s.Metadata = map[string]string{optimizerKey: t.compiler.Optimizer.Name(), stepsKey: strconv.Itoa(c.steps)}
	for i, name := range t.compiler.Optimizer.State() {
		for _, p := range t.compiler.Layout.Params {
			x := c.state[i][p.Slot.Offset:p.Slot.End()]
			s.Set(stateName(name, p.Name), tensor.New(tensor.WithShape(p.Slot.Shape...), tensor.WithBacking(x)))
		}
	}
	if c.scale != nil {
		s.Set(lossScaleName, tensor.New(tensor.WithShape(len(c.scale)), tensor.WithBacking(c.scale)))
	}
	return s.Save(path)
}

// readCheckpoint is rank 0's part of loading: it gives the ranks of its process the model's values, and returns the rest. When it refuses a
// file nothing has changed.
func (t *DataParallel) readCheckpoint(path string) (*checkpoint, error) {
	all, err := nn.ReadSafetensors(path)
	if err != nil {
		return nil, err
	}
	opt, l := t.compiler.Optimizer, t.compiler.Layout
	steps, err := strconv.Atoi(all.Metadata[stepsKey])
	switch name, ok := all.Metadata[optimizerKey]; {
	case !ok:
		return nil, fmt.Errorf("%s is no checkpoint: it does not name an optimizer: nn.LoadSafetensors reads a model by itself", path)
	case name != opt.Name():
		return nil, fmt.Errorf("%s is of training by %s, and this is by %s: use that, or read the model by itself with nn.LoadSafetensors", path, name, opt.Name())
	case err != nil || steps < 0:
		return nil, fmt.Errorf("%s has %q for the number of steps", path, all.Metadata[stepsKey])
	}
	model, rest := new(nn.State), map[string]*tensor.Dense{}
	for name, x := range all.All() {
		if strings.HasPrefix(name, optimizerPrefix) {
			rest[name] = x
		} else {
			model.Set(name, x)
		}
	}
	c := &checkpoint{steps: steps}
	var wrong nn.StateError
	take := func(name string, to []float32, shape ir.Shape) {
		x, ok := rest[name]
		delete(rest, name)
		switch {
		case !ok:
			wrong.Missing = append(wrong.Missing, name)
		case !shape.Equal(ir.Shape(x.Shape())):
			wrong.Mismatched = append(wrong.Mismatched, nn.Mismatch{Name: name, Have: x.Shape(), Want: tensor.Shape(shape)})
		default:
			copy(to, x.Float32s())
		}
	}
	for _, name := range opt.State() {
		vector := make([]float32, l.Elements)
		for _, p := range l.Params {
			take(stateName(name, p.Name), vector[p.Slot.Offset:p.Slot.End()], p.Slot.Shape)
		}
		c.state = append(c.state, vector)
	}
	if _, ok := rest[lossScaleName]; ok {
		c.scale = make([]float32, nn.ScaleTail)
		take(lossScaleName, c.scale, ir.Of(nn.ScaleTail))
	}
	wrong.Unexpected = slices.Sorted(maps.Keys(rest))
	if len(wrong.Missing)+len(wrong.Mismatched)+len(wrong.Unexpected) > 0 {
		return nil, fmt.Errorf("%s: %w", path, &wrong)
	}
	if err := t.load(model, true); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// stateRange is the slots of what the optimizer remembers on a rank, and the elements of the parameter arena that these are of.
func (t *DataParallel) stateRange(rank int) (slots []*ir.Slot, lo, hi int) {
	lo, hi = t.updateRange(rank)
	if hi > lo {
		slots = t.compiler.StateSlots(lo, hi)
	}
	return slots, lo, hi
}

// remembered reads c, but for the number of steps, from the cards. In a job of several processes rank 0 has all of that, and the others none.
func (t *DataParallel) remembered(ctx context.Context, c *checkpoint) error {
	kinds, n := len(t.compiler.Optimizer.State()), t.compiler.Layout.Elements
	if t.Rank() == 0 {
		for range kinds {
			c.state = append(c.state, make([]float32, n))
		}
	}
	return t.team.do(ctx, rankFunc(func(r *rank) error {
		slots, lo, hi := t.stateRange(r.index)
		if r.index == 0 && t.compiler.Scaled {
			c.scale = make([]float32, nn.ScaleTail)
			at, _ := t.compiler.FirstScale()
			if err := r.mem[ir.Params].Read(4*int64(at), ir.Bytes(c.scale)); err != nil {
				return err
			}
		}
		counts := t.stateCounts()
		for i := range kinds {
			var own, all []float32
			switch {
			case r.index == 0:
				own, all = c.state[i][lo:hi], c.state[i]
			case counts == nil:
				return nil
			default:
				own = make([]float32, hi-lo)
			}
			if len(slots) > 0 {
				if err := r.mem[ir.State].Read(4*int64(slots[i].Offset), ir.Bytes(own)); err != nil {
					return err
				}
			}
			if counts != nil {
				if err := r.group.Gather(ctx, all, own, counts, 0); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// stateCounts are the elements of all ranks' shares of what the optimizer remembers, or nil where rank 0 has all.
func (t *DataParallel) stateCounts() (counts []int) {
	if t.cfg.strategy != Sharded {
		return nil
	}
	for r := range t.WorldSize() {
		lo, hi := t.updateRange(r)
		counts = append(counts, hi-lo)
	}
	return counts
}

// remember is the reverse of remembered, and gives the other processes the model's values, too. c is nil on ranks that have none.
func (t *DataParallel) remember(ctx context.Context, c *checkpoint) error {
	if err := t.team.do(ctx, rankFunc(func(r *rank) error {
		if c != nil && c.scale != nil && t.compiler.Scaled {
			at, _ := t.compiler.FirstScale()
			if err := r.mem[ir.Params].Write(4*int64(at), ir.Bytes(c.scale)); err != nil {
				return err
			}
		}
		return t.rememberState(ctx, r, c)
	})); err != nil {
		return err
	}
	return t.fromPrimary(ctx)
}

// rememberState gives a rank its part of what the optimizer remembers.
func (t *DataParallel) rememberState(ctx context.Context, r *rank, c *checkpoint) error {
	slots, lo, hi := t.stateRange(r.index)
	counts := t.stateCounts()
	for i := range t.compiler.Optimizer.State() {
		var own []float32
		switch {
		case counts != nil:
			own = make([]float32, hi-lo)
			var all []float32
			if r.index == 0 {
				all = c.state[i]
			}
			if err := r.group.Scatter(ctx, own, all, counts, 0); err != nil {
				return err
			}
		case c != nil:
			own = c.state[i][lo:hi]
		default:
			own = make([]float32, hi-lo)
		}
		if t.cfg.strategy == AllReduce && t.procs != nil {
			if err := r.group.Broadcast(ctx, own, 0); err != nil {
				return err
			}
		}
		if len(slots) == 0 {
			continue
		}
		if err := r.mem[ir.State].Write(4*int64(slots[i].Offset), ir.Bytes(own)); err != nil {
			return err
		}
	}
	return nil
}

// elsewhereError is what other processes hear of rank 0's error.
type elsewhereError struct {
	text    string
	missing bool // it was an fs.ErrNotExist
}

func (e *elsewhereError) Error() string        { return "rank 0: " + e.text }
func (e *elsewhereError) Is(target error) bool { return e.missing && target == fs.ErrNotExist }

// reported tells the launcher of an error of rank 0's that all have heard of. Their group is whole: a step that they do all the same takes it back.
func (t *DataParallel) reported(err error) error {
	if t.procs == nil {
		return err
	}
	return errors.Join(err, t.procs.report(err))
}

// told gives all processes what rank 0 has come to: a number, or an error.
func (t *DataParallel) told(ctx context.Context, n int, own error) (int, error) {
	if t.procs == nil {
		return n, own
	}
	const (
		number = iota // halves of it, then the bytes of the error's text, and whether it is an fs.ErrNotExist
		_
		length
		missing
		words
	)
	head := make([]int32, words)
	var text []byte
	if own != nil {
		text = []byte(own.Error())
	}
	head[number], head[number+1] = int32(n), int32(n>>32)
	head[length], head[missing] = int32(len(text)), flag(errors.Is(own, fs.ErrNotExist))
	if err := t.group().Broadcast(ctx, ir.Words[float32](ir.Bytes(head)), 0); err != nil {
		return 0, t.failed(err)
	}
	if head[length] == 0 {
		return int(head[number+1])<<32 | int(uint32(head[number])), nil
	}
	padded := make([]float32, (head[length]+3)/4)
	copy(ir.Bytes(padded), text)
	if err := t.group().Broadcast(ctx, padded, 0); err != nil {
		return 0, t.failed(err)
	}
	if own != nil {
		return 0, own
	}
	return 0, &elsewhereError{string(ir.Bytes(padded)[:head[length]]), head[missing] != 0}
}
