package dp_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/nn"
)

// gained is a linear layer with a gain for all of its outputs, which is a scalar.
type gained struct {
	Fc   *nn.LinearLayer
	Gain *nn.Parameter
}

func newGained() nn.Module { return &gained{Fc: nn.Linear(12, 5), Gain: nn.NewParameter(nn.Ones())} }

func (m *gained) Forward(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	y, err := m.Fc.Forward(g, x)
	if err != nil {
		return nil, err
	}
	return gorgonia.HadamardProd(y, g.Param(m.Gain))
}

// resumable are trainings that go on from more than parameters.
func resumable() []task {
	all := tasks()
	schedule := dp.WithSchedule(nn.OneCycle(8))
	list := []task{all[1], all[3], all[4], all[0], {name: "a scalar", model: newGained, loss: all[0].loss, opt: all[0].opt, in: []int{12}, out: 5}}
	for i := range list {
		list[i].opts = append(slices.Clone(list[i].opts), schedule)
	}
	scaled := all[1]
	scaled.name, scaled.opts = "a skipped step", []dp.Option{dp.WithPrecision(nn.FP16), schedule}
	return append(list, scaled)
}

// run takes steps on batches, of which rank 0 has them.
func run(t *testing.T, d *dp.DataParallel, x, y []*tensor.Dense) (r result, err error) {
	for i := range x {
		var bx, by tensor.Tensor
		if d.Rank() == 0 {
			bx, by = x[i], y[i]
		}
		loss, err := d.Step(t.Context(), bx, by)
		if err != nil {
			return r, err
		}
		r.losses = append(r.losses, loss)
	}
	r.params, err = stateOf(d)
	return r, err
}

// goesOn trains, saves in the middle, and has another trainer go on from there, which must come to the same bits. It is run by each rank.
func goesOn(t *testing.T, path string, x, y []*tensor.Dense, d, other *dp.DataParallel) error {
	const saved = 4
	if _, err := run(t, d, x[:saved], y[:saved]); err != nil {
		return err
	}
	if err := d.SaveCheckpoint(path); err != nil {
		return err
	}
	want, err := run(t, d, x[saved:], y[saved:])
	if err != nil {
		return err
	}
	if err := other.LoadCheckpoint(path); err != nil {
		return err
	}
	if n := other.Steps(); n != saved {
		return fmt.Errorf("it goes on after %d steps, not %d", n, saved)
	}
	got, err := run(t, other, x[saved:], y[saved:])
	if err != nil {
		return err
	}
	if !slices.Equal(got.losses, want.losses) || !slices.Equal(got.params, want.params) {
		return fmt.Errorf("losses are %v, without an end %v, and parameters %.2g apart", got.losses, want.losses, apart(got.params, want.params))
	}
	skipped, err := d.SkippedSteps()
	if err != nil {
		return err
	}
	if n, err := other.SkippedSteps(); err != nil || n != skipped {
		return fmt.Errorf("%d steps were skipped, without an end %d (%w)", n, skipped, err)
	}
	return nil
}

func TestCheckpointGoesOn(t *testing.T) {
	for _, tk := range resumable() {
		x, y := batches(tk, 8, 9)
		if tk.name == "a skipped step" {
			x[1].Float32s()[0] = 1e6 // whose gradients are past float16's range
		}
		for _, strategy := range strategies {
			t.Run(fmt.Sprintf("%s/%v/one process", tk.name, strategy), func(t *testing.T) {
				cudaopstest.Setup(t, "3x64MiB", "")
				var both [2]*dp.DataParallel
				for i := range both {
					d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat([]dp.Option{dp.Seed(3), dp.WithStrategy(strategy)}, tk.opts)...)
					if err != nil {
						t.Fatal(err)
					}
					defer closed(t, d)
					both[i] = d
				}
				if err := goesOn(t, filepath.Join(t.TempDir(), "checkpoint"), x, y, both[0], both[1]); err != nil {
					t.Error(err)
				}
			})
			t.Run(fmt.Sprintf("%s/%v/processes", tk.name, strategy), func(t *testing.T) {
				path, m := filepath.Join(t.TempDir(), "checkpoint"), newMeeting(3)
				allWell(t, together(t, 3, tk, func(d *dp.DataParallel) error {
					opts := slices.Concat([]dp.Option{dp.Seed(3), dp.WithStrategy(strategy), dp.WithSession(end{m, d.Rank()})}, tk.opts)
					other, err := dp.New(tk.model(), tk.loss(), tk.opt(), opts...)
					if err != nil {
						return err
					}
					at := path
					if d.Rank() > 0 {
						at = "" // not used
					}
					return errors.Join(goesOn(t, at, x, y, d, other), other.Close())
				}, dp.WithStrategy(strategy)))
			})
		}
	}
}

// TestCheckpointOnOtherRanks goes on with another strategy, on another number of cards.
func TestCheckpointOnOtherRanks(t *testing.T) {
	tk := tasks()[1]
	x, y := batches(tk, 8, 9)
	path := filepath.Join(t.TempDir(), "checkpoint")
	train := func(from, to int, load bool, opts ...dp.Option) (r result) {
		cudaopstest.Setup(t, "3x64MiB", "")
		d, err := dp.New(tk.model(), tk.loss(), tk.opt(), slices.Concat([]dp.Option{dp.Seed(3)}, tk.opts, opts)...)
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, d)
		if load {
			if err := d.LoadCheckpoint(path); err != nil {
				t.Fatal(err)
			}
		}
		if r, err = run(t, d, x[from:to], y[from:to]); err != nil {
			t.Fatal(err)
		}
		if !load {
			if err := d.SaveCheckpoint(path); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	want := train(0, 8, false, dp.DeviceIDs(0))
	want.losses = want.losses[4:]
	for _, from := range strategies {
		train(0, 4, false, dp.WithStrategy(from))
		for _, to := range strategies {
			sameTraining(t, train(4, 8, true, dp.WithStrategy(to), dp.DeviceIDs(2, 0)), want)
		}
		sameTraining(t, train(4, 8, true, dp.DeviceIDs(1)), want)
	}
}

// The model in a checkpoint can be had by itself.
func TestCheckpointHasTheModel(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	tk, path := tasks()[4], filepath.Join(t.TempDir(), "checkpoint")
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(3))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	x, y := batches(tk, 2, 9)
	if _, err := run(t, d, x, y); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveCheckpoint(path); err != nil {
		t.Fatal(err)
	}
	other := tk.model()
	if err := nn.LoadSafetensors(other, path, false); err != nil {
		t.Fatal(err)
	}
	have, err := nn.StateDict(other)
	if err != nil {
		t.Fatal(err)
	}
	want, err := d.StateDict()
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range want.All() {
		if got := have.Get(name); got == nil || !slices.Equal(got.Float32s(), x.Float32s()) {
			t.Errorf("%s is %v, want %v", name, got, x)
		}
	}
}

// What is no checkpoint of this training is refused, and changes nothing.
func TestCheckpointRefuses(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	folder := t.TempDir()
	save := func(name string, model nn.Module, opt nn.Optimizer) string {
		d, err := dp.New(model, nn.CrossEntropy(), opt, dp.Seed(1))
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, d)
		path := filepath.Join(folder, name)
		if err := d.SaveCheckpoint(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := save("good", mlp(), nn.SGD(0.1, nn.Momentum(0.9)))
	cut := filepath.Join(folder, "cut")
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, whole[:len(whole)-4], 0o600); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(folder, "model")
	if err := nn.SaveSafetensors(newGained(), model); err == nil {
		t.Fatal("a model without values was saved")
	}
	plain := mlp()
	if err := nn.Initialize(plain, 1); err != nil {
		t.Fatal(err)
	}
	if err := nn.SaveSafetensors(plain, model); err != nil {
		t.Fatal(err)
	}

	d, err := dp.New(mlp(), nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)), dp.Seed(2))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	before := state(t, d)
	var fit *nn.StateError
	for _, c := range []struct {
		path string
		want string
		as   any
	}{
		{filepath.Join(folder, "none"), "none", nil},
		{cut, cut, nil},
		{model, "is no checkpoint: it does not name an optimizer", nil},
		{save("adam", mlp(), nn.Adam(0.1)), "is of training by adam, and this is by sgd", nil},
		{save("plain", mlp(), nn.SGD(0.1)), "missing optimizer/momentum_buffer/3.bias", &fit},
		{save("narrow", nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5)), nn.SGD(0.1, nn.Momentum(0.9))), "optimizer/momentum_buffer/1.weight is [8,12], not [20,12]", &fit},
		{save("deep", nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5), nn.ReLU(), nn.Linear(5, 5)), nn.SGD(0.1, nn.Momentum(0.9))), "unexpected optimizer/momentum_buffer/5", &fit},
	} {
		err := d.LoadCheckpoint(c.path)
		if err == nil || !strings.HasPrefix(err.Error(), "dp: load checkpoint: ") || !strings.Contains(err.Error(), c.want) || c.as != nil && !errors.As(err, c.as) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
		if (filepath.Base(c.path) == "none") != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: is %v that there is none?", c.path, err)
		}
	}
	if !slices.Equal(state(t, d), before) || d.Steps() != 0 {
		t.Error("something has changed")
	}
}

// What could not be told from the optimizer's is not saved.
func TestCheckpointOfOptimizersName(t *testing.T) {
	cudaopstest.Setup(t, "2x64MiB", "")
	model := &struct {
		*gained `nn:"-"`
		Part    nn.Module `nn:"optimizer/momentum_buffer"`
	}{Part: nn.Linear(12, 5)}
	d, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	path := filepath.Join(t.TempDir(), "checkpoint")
	if err := d.SaveCheckpoint(path); err == nil || !strings.Contains(err.Error(), "optimizer/momentum_buffer.weight") {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a file: %v", err)
	}
}

// TestCheckpointErrorsAreHeard: what rank 0 can't do, all hear of, and training goes on.
func TestCheckpointErrorsAreHeard(t *testing.T) {
	tk, folder := tasks()[0], t.TempDir()
	x, y := batches(tk, 2, 9)
	allWell(t, together(t, 3, tk, func(d *dp.DataParallel) error {
		none := filepath.Join(folder, "none", "checkpoint")
		for _, call := range []func(string) error{d.LoadCheckpoint, d.SaveCheckpoint} {
			err := call(none)
			if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), none) || strings.Contains(err.Error(), "rank 0: ") != (d.Rank() > 0) {
				return fmt.Errorf("error is %w", err)
			}
		}
		_, err := run(t, d, x, y)
		return err
	}))
}

// halfway is a rank's end of groups in which one broadcast succeeds, on rank 1, and no other.
type halfway struct{ end }

func (e halfway) NewGroup(ctx context.Context, facts []comm.Fact) (comm.Comm, error) {
	g, err := e.end.NewGroup(ctx, facts)
	if err == nil && e.rank == 1 {
		g = &oneBroadcast{Comm: g}
	}
	return g, err
}

type oneBroadcast struct {
	comm.Comm
	done bool
}

func (c *oneBroadcast) Broadcast(ctx context.Context, buf []float32, root int) error {
	if c.done {
		return errors.New("the wire is cut")
	}
	c.done = true
	return c.Comm.Broadcast(ctx, buf, root)
}

// TestCheckpointLoadedByHalf: ranks that may have one part of a checkpoint each do not go on with that.
func TestCheckpointLoadedByHalf(t *testing.T) {
	tk, path := tasks()[0], filepath.Join(t.TempDir(), "checkpoint")
	x, y := batches(tk, 1, 9)
	save := func(d *dp.DataParallel) error { return d.SaveCheckpoint(path) }
	allWell(t, together(t, 2, tk, save, dp.WithStrategy(dp.AllReduce)))
	cudaopstest.Setup(t, "", "")
	m := newMeeting(2)
	var ranks sync.WaitGroup
	for r := range 2 {
		ranks.Go(func() {
			d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.Seed(3), dp.WithSession(halfway{end{m, r}}), dp.WithStrategy(dp.AllReduce))
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			defer closed(t, d)
			first := d.LoadCheckpoint(path)
			_, later := d.Step(t.Context(), x[0], y[0])
			for _, err := range []error{first, later} {
				var torn *dp.TornError
				if !errors.As(err, &torn) || !strings.Contains(err.Error(), "by half") || !strings.Contains(err.Error(), "the wire is cut") {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
	ranks.Wait()
}
