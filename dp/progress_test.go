package dp_test

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// watched is a model that asks how far training is while a step is being made.
type watched struct {
	nn.Module
	ask func()
}

func (m *watched) Forward(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	m.ask()
	return m.Module.Forward(g, x)
}

// TestProgress counts steps and their samples, also while others look on, and in the middle of a step.
func TestProgress(t *testing.T) {
	cudaopstest.Setup(t, "3x64MiB", "")
	asked := 0
	var d *dp.DataParallel
	model := &watched{Module: mlp(), ask: func() {
		if d == nil {
			return
		}
		if p := d.Progress(); p.Steps != 0 || !math.IsNaN(p.Loss) || p.SamplesPerSecond() != 0 {
			t.Errorf("in the first step: %+v", p)
		}
		asked++
	}}
	var err error
	if d, err = dp.New(model, nn.CrossEntropy(), nn.SGD(0.1)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for seen := 0; ; {
			p := d.Progress()
			if p.Steps < seen || p.Samples != 8*int64(p.Steps) {
				t.Errorf("%+v after %d steps", p, seen)
			}
			seen = p.Steps
			select {
			case <-done:
				return
			default:
			}
		}
	})
	x, y := batchOf(rand.New(rand.NewPCG(5, 5)), 8, []int{12}, 5)
	begin, loss := time.Now(), 0.0
	const steps = 20
	for i := range steps {
		if i%2 == 0 {
			loss, err = d.Step(t.Context(), x, y)
		} else {
			var late *dp.Loss
			if late, err = d.StepAsync(t.Context(), x, y); err == nil {
				loss, err = late.Value()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	whole := time.Since(begin)
	close(done)
	watcher.Wait()
	closed(t, d)
	p := d.Progress()
	if p.Steps != steps || p.Samples != 8*steps || p.Loss != loss || p.Time <= 0 || p.Time > whole {
		t.Errorf("%d steps with loss %v in %v: %+v", steps, loss, whole, p)
	}
	if p.LastSamples != 8 || p.LastTime <= 0 || p.SamplesPerSecond() != 8/p.LastTime.Seconds() {
		t.Errorf("the last step: %+v", p)
	}
	if asked == 0 || len(p.Collectives) != 3 {
		t.Errorf("asked %d times; collectives %v, want those of 3 ranks", asked, p.Collectives)
	}
	for rank, spent := range p.Collectives {
		if spent <= 0 || spent > whole {
			t.Errorf("rank %d was in collectives for %v of %v", rank, spent, whole)
		}
	}
}

// TestProgressOfProcesses: each counts its own samples, whoever brought them, and all know the loss.
func TestProgressOfProcesses(t *testing.T) {
	tk := tasks()[0]
	x, y := batches(tk, 4, 7)
	var mu sync.Mutex
	samples, losses := map[int]int64{}, map[float64]int{}
	allWell(t, together(t, 2, tk, func(d *dp.DataParallel) error {
		for i := range x {
			bx, by := x[i], y[i]
			if d.Rank() > 0 {
				bx, by = nil, nil
			}
			_, err := d.Step(t.Context(), bx, by)
			if err != nil {
				return err
			}
		}
		p := d.Progress()
		mu.Lock()
		defer mu.Unlock()
		samples[d.Rank()] = p.Samples
		losses[p.Loss]++
		if p.Steps != 4 || p.Collectives[0] <= 0 {
			t.Errorf("rank %d: %+v", d.Rank(), p)
		}
		return nil
	}))
	if samples[0] != 4*4 || samples[1] != 4*3 || len(losses) != 1 {
		t.Errorf("samples %v, losses %v", samples, losses)
	}
}
