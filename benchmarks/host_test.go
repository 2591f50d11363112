package main

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/nn"
)

// The peer does the same work: from the same parameters, the same losses step by step.
func TestTapeTrainsTheSame(t *testing.T) {
	for _, n := range []net{mlp, cnn} {
		t.Run(n.name, func(t *testing.T) {
			x, y, oneHot := samples(2)
			model := n.natives()
			ours, err := newTrainer(model, nn.LossFunc(nativeLoss))
			if err != nil {
				t.Fatal(err)
			}
			peer, err := newTape(model, x, oneHot, learningRate)
			if err != nil {
				t.Fatal(err)
			}
			var losses []float64
			for i := range 4 {
				got, err := ours.Step(context.Background(), x, oneHot)
				if err != nil {
					t.Fatal(err)
				}
				want, err := peer.step()
				if err != nil {
					t.Fatal(err)
				}
				if !(math.Abs(got-want) <= 1e-4*math.Abs(want)) {
					t.Errorf("loss %d: %v, Gorgonia's %v", i, got, want)
				}
				losses = append(losses, got)
			}
			if losses[3] >= losses[0] {
				t.Errorf("losses %v: nothing is learnt", losses)
			}
			if err := peer.close(); err != nil {
				t.Error(err)
			}
			if err := ours.Close(); err != nil {
				t.Error(err)
			}

			// nn's layers are a network of the same size.
			layers, err := newTrainer(n.layers(), nn.CrossEntropy())
			if err != nil {
				t.Fatal(err)
			}
			if a, b := ours.Memory()[0].Parameters, layers.Memory()[0].Parameters; a != b {
				t.Errorf("parameters take %d bytes, nn's layers %d", a, b)
			}
			if _, err := layers.Step(context.Background(), x, y); err != nil {
				t.Error(err)
			}
			if err := layers.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStepRows(t *testing.T) {
	b := &bench{sampling: sampling{runs: 1}, suite: "host", cores: 2, peers: []string{gorgoniaPeer}, log: t.Logf}
	if err := steps(context.Background(), b, mlp, 2); err != nil {
		t.Fatal(err)
	}
	var modes []string
	for _, r := range b.rows {
		modes = append(modes, r.Metric+" "+r.Mode)
	}
	if want := []string{"step 2 cores", "step 2 cores, gorgonia's graph", "step gorgonia, 2 cores", "images 2 cores"}; !slices.Equal(modes, want) {
		t.Fatalf("rows %q, want %q", modes, want)
	}
	ours, theirs := b.rows[0], b.rows[2]
	if ours.Ratio == nil || *ours.Ratio != ours.Value/theirs.Value {
		t.Errorf("ratio of %+v to %+v", ours, theirs)
	}
	if images := 2 / (ours.Value / 1e3); math.Abs(b.rows[3].Value-images) > 1e-6*images {
		t.Errorf("%v images/s, want %v", b.rows[3].Value, images)
	}
}

func TestMatmulRows(t *testing.T) {
	for cores, want := range map[int][]string{
		1: {"1 core", "fma peak, 1 core"},
		2: {"1 core", "2 cores", "fma peak, 1 core", "fma peak, 2 cores", "2 cores"},
	} {
		b := &bench{sampling: sampling{runs: 1}, suite: "host", cores: cores, log: t.Logf}
		if err := matmul(context.Background(), b, 32); err != nil {
			t.Fatal(err)
		}
		var modes []string
		for _, r := range b.rows {
			modes = append(modes, r.Mode)
		}
		if !slices.Equal(modes, want) {
			t.Fatalf("rows %q, want %q", modes, want)
		}
		if ours, peak := b.rows[0], b.rows[cores]; !ours.limit || *ours.Ratio != peak.Value/ours.Value {
			t.Errorf("%+v below %+v", ours, peak)
		}
	}
}
