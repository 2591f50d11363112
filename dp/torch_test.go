package dp_test

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

//go:embed testdata/torch_train.py
var torchTrain string

// TestCardAgainstTorch trains on a card beside PyTorch on the same one, from the same values on the same batches, and compares loss and
// parameters after every step.
func TestCardAgainstTorch(t *testing.T) {
	needCard(t)
	for _, c := range []struct {
		name  string
		model func() nn.Module
	}{
		{"mlp", func() nn.Module {
			return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
		}},
		{"cnn", func() nn.Module {
			return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
				nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
		}},
	} {
		t.Run(c.name, func(t *testing.T) { againstTorch(t, c.name, c.model()) })
	}
}

func againstTorch(t *testing.T, name string, model nn.Module) {
	// The parameters of the cnn may be further apart than rounding alone brings them: by 1e-5 to 1e-4 once a sign before ReLU, or which of two pixels is the
	// larger, falls the other way.
	const steps, batch, rate, tolerance, paramTolerance = 50, 64, 0.01, 1e-5, 1e-3
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	d, err := dp.New(model, nn.CrossEntropy(), nn.SGD(rate, nn.Momentum(0.9)), dp.DeviceIDs(0), dp.Seed(seed))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)

	rng := rand.New(rand.NewPCG(seed, 1))
	x, y := make([]float32, steps*batch*784), make([]float32, steps*batch)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for i := range y {
		y[i] = float32(rng.IntN(10))
	}
	dir := t.TempDir()
	start, err := d.StateDict()
	if err != nil {
		t.Fatal(err)
	}
	batches := new(nn.State)
	batches.Set("x", tensor.New(tensor.WithShape(steps, batch, 1, 28, 28), tensor.WithBacking(x)))
	batches.Set("y", tensor.New(tensor.WithShape(steps, batch), tensor.WithBacking(y)))
	if err := errors.Join(start.Save(filepath.Join(dir, "start.safetensors")), batches.Save(filepath.Join(dir, "batches.safetensors"))); err != nil {
		t.Fatal(err)
	}
	torch := exec.CommandContext(t.Context(), "python3", "-c", torchTrain, name, fmt.Sprint(rate), dir)
	var said bytes.Buffer
	torch.Stderr = &said
	pipe, err := torch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := torch.Start(); errors.Is(err, exec.ErrNotFound) {
		t.Skip("no python3")
	} else if err != nil {
		t.Fatal(err)
	}
	theirs := bufio.NewReaderSize(pipe, 1<<20)
	ended := func(seen error) {
		if err := torch.Wait(); strings.HasPrefix(said.String(), "no ") {
			t.Skipf("%s on this machine", strings.TrimSpace(said.String()))
		} else {
			t.Fatalf("PyTorch: %v, %v: %s", seen, err, said.String())
		}
	}
	worstLoss, worst := 0.0, 0.0
	for i := range steps {
		labels := make([]int32, batch)
		for k := range labels {
			labels[k] = int32(y[i*batch+k])
		}
		l, err := d.StepAsync(t.Context(),
			tensor.New(tensor.WithShape(batch, 1, 28, 28), tensor.WithBacking(x[i*batch*784:][:batch*784])), tensor.New(tensor.WithShape(batch), tensor.WithBacking(labels)))
		if err != nil {
			t.Fatal(err)
		}
		ours, err := l.Value()
		if err != nil {
			t.Fatal(err)
		}
		loss := make([]float32, 1)
		if _, err := io.ReadFull(theirs, ir.Bytes(loss)); err != nil {
			ended(err)
		}
		mine := byName(t, d)
		params := make([]float32, len(mine))
		if _, err := io.ReadFull(theirs, ir.Bytes(params)); err != nil {
			ended(err)
		}
		off := apart(mine, params)
		lossOff := math.Abs(ours-float64(loss[0])) / max(1, math.Abs(float64(loss[0])))
		if off > 2*worst {
			t.Logf("step %d: parameters %.2g apart", i, off)
		}
		worstLoss, worst = max(worstLoss, lossOff), max(worst, off)
		if !(lossOff <= tolerance && off <= paramTolerance) {
			t.Fatalf("step %d: loss %v, PyTorch's %v; parameters %.2g apart", i, ours, loss[0], off)
		}
	}
	if err := torch.Wait(); err != nil {
		t.Fatalf("PyTorch: %v: %s", err, said.String())
	}
	t.Logf("in %d steps losses were up to %.2g apart, parameters up to %.2g", steps, worstLoss, worst)
	// What PyTorch has saved is loaded here.
	saved, err := nn.ReadSafetensors(filepath.Join(dir, "end.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	mine := byName(t, d)
	if err := d.LoadStateDict(saved, true); err != nil {
		t.Fatal(err)
	}
	if off := apart(byName(t, d), mine); !(off <= paramTolerance) {
		t.Errorf("what PyTorch saved is %.2g apart from what we trained", off)
	}
}

// byName is every parameter in the order of their names.
func byName(t *testing.T, d *dp.DataParallel) []float32 {
	t.Helper()
	s, err := d.StateDict()
	if err != nil {
		t.Fatal(err)
	}
	names := s.Names()
	slices.Sort(names)
	var all []float32
	for _, name := range names {
		all = append(all, s.Get(name).Data().([]float32)...)
	}
	return all
}
