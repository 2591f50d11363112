package cudaops_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// TestTrainOnLinkedCards: cards that exchange by NCCL, or by kernels of our own, of which one has no samples, come to what one card comes to,
// with every strategy, with gradients summed at once or in buckets.
func TestTrainOnLinkedCards(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nccl":   {cudaops.LinkVariable: "nccl", "TANDEM_CUDA_GRAPH": "off"},
		"direct": nil,
	} {
		t.Run(name, func(t *testing.T) {
			if fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024, 1024}, NCCL: true, Kernels: true, Env: env}) {
				trainOnLinkedCards(t)
			}
		})
	}
}

func trainOnLinkedCards(t *testing.T) {
	const n = 4 // two for each of two cards
	want := trained(t, n, dp.DeviceIDs(0))
	for _, s := range []dp.Strategy{dp.Gather, dp.AllReduce, dp.Sharded} {
		for _, bucket := range []int{0, 64} {
			var said bytes.Buffer
			got := trained(t, n, dp.DeviceIDs(0, 1, 2), dp.WithStrategy(s), dp.BucketBytes(bucket), dp.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
			for i := range want {
				if d := math.Abs(float64(got[i] - want[i])); !(d < 1e-5) {
					t.Errorf("%v, buckets of %d bytes: number %d is %v, on one card %v", s, bucket, i, got[i], want[i])
					break
				}
			}
			if said.Len() > 0 {
				t.Errorf("%v: %s", s, &said) // that the cards are not linked
			}
		}
	}
}

// TestSyncOnLinkedCards: statistics that cards have together are summed by the cards themselves, within a step's graph, where all have samples, and by way of
// the host where one has none; they come to what one card comes to. A label that is out of range on one card is an error, after which training goes on.
func TestSyncOnLinkedCards(t *testing.T) {
	for name, env := range map[string]map[string]string{"nccl": {cudaops.LinkVariable: "nccl", "TANDEM_CUDA_GRAPH": "off"}, "direct": nil} {
		t.Run(name, func(t *testing.T) {
			if fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024, 1024}, NCCL: true, Kernels: true, Env: env}) {
				syncOnLinkedCards(t)
			}
		})
	}
}

func synchronised() nn.Module {
	return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7, nn.Sync()), nn.ReLU(), nn.Linear(7, 3))
}

func syncOnLinkedCards(t *testing.T) {
	for _, c := range []struct {
		n      int // samples: two for each, or none for one
		s      dp.Strategy
		graphs int // launched, of which the first step has none; 0 is any number: kernels may be compared, too
	}{{6, dp.Gather, 0}, {6, dp.Sharded, 3 * 2}, {4, dp.AllReduce, 0}} {
		want := trainedOn(t, synchronised, c.n, numbers(c.n), "", dp.DeviceIDs(0))
		before := len(fakecuda.Calls(t))
		got := trainedOn(t, synchronised, c.n, numbers(c.n), "", dp.WithStrategy(c.s))
		for i := range want {
			if d := math.Abs(float64(got[i] - want[i])); !(d < 1e-4) {
				t.Errorf("%d samples, %v: number %d is %v, on one card %v", c.n, c.s, i, got[i], want[i])
				break
			}
		}
		graphs := fakecuda.Count(fakecuda.Calls(t)[before:], "cuGraphLaunch")
		if on := os.Getenv("TANDEM_CUDA_GRAPH") != "off"; on && c.graphs > 0 && graphs != c.graphs {
			t.Errorf("%d samples, %v: %d graphs launched, want %d, one a card and step", c.n, c.s, graphs, c.graphs)
		}
	}

	d, err := dp.New(synchronised(), nn.CrossEntropy(), nn.SGD(0.1), dp.Seed(2))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, label := range []int32{1, 9, 2} {
		y := tensor.New(tensor.WithShape(6), tensor.WithBacking([]int32{0, 1, 2, label, 1, 0}))
		_, err := d.Step(t.Context(), numbers(6)(0), y)
		var wrong *dp.IndexError
		if bad := label == 9; bad != errors.As(err, &wrong) || !bad && err != nil {
			t.Errorf("label %d: %v", label, err)
		}
	}
}

// TestTwoCardsInHalves: where two cards tell each other their gradients as halves, what they come to is near what one card comes to. TANDEM_TEST_LONG=1 adds
// other ways to tell, other buckets and strategies, which make no difference to the bit, and a card without samples: a fake takes long for so many gradients.
func TestTwoCardsInHalves(t *testing.T) {
	if testing.Short() {
		t.Skip("TestTrainOnLinkedCards has the races")
	}
	unlinked := map[string]string{cudaops.LinkVariable: "nccl", "TANDEM_CUDA_GRAPH": "off"}
	long := os.Getenv("TANDEM_TEST_LONG") != ""
	for name, c := range map[string]fakecuda.Config{"direct": {}, "nccl": {NCCL: true, Env: unlinked}, "host": {Env: unlinked}} {
		c.Cards, c.Kernels = []int64{1024, 1024}, true
		t.Run(name, func(t *testing.T) {
			switch {
			case !long && name != "direct":
				t.Skip("without TANDEM_TEST_LONG=1")
			case !fakecuda.In(t, c):
			case long:
				twoCardsInHalves(t, []int{3, 1}, []int{0, 64}, dp.AllReduce, dp.Sharded)
			default:
				twoCardsInHalves(t, []int{3}, []int{64}, dp.AllReduce)
			}
		})
	}
}

func twoCardsInHalves(t *testing.T, samples, buckets []int, strategies ...dp.Strategy) {
	const tolerance = 1e-3 // of numbers around 1, each of whose gradients, of up to a tenth, is rounded to 8 bits in three steps
	for _, n := range samples {
		one := trainedOnMany(t, n, dp.DeviceIDs(0), dp.WithPrecision(nn.BF16))
		var first []float32
		for _, s := range strategies {
			for _, bucket := range buckets {
				got := trainedOnMany(t, n, dp.DeviceIDs(0, 1), dp.WithStrategy(s), dp.BucketBytes(bucket), dp.WithPrecision(nn.BF16))
				if first == nil {
					first = got
				}
				if !slices.Equal(got, first) {
					t.Errorf("%d samples, %v, buckets of %d bytes: other bits than by another strategy, or at once", n, s, bucket)
				}
				for i := range one {
					if d := math.Abs(float64(got[i] - one[i])); !(d < tolerance) {
						t.Errorf("%d samples, %v, buckets of %d bytes: number %d is %v, on one card %v", n, s, bucket, i, got[i], one[i])
						break
					}
				}
			}
		}
	}
}

// TestTrainInHalves: on a card, where rounded numbers lie in 16 bits, the gradients of bf16 among them, training comes to what it comes to on the
// host, which rounds them.
func TestTrainInHalves(t *testing.T) {
	if testing.Short() {
		t.Skip("one card has nobody to race with")
	}
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Kernels: true, Env: map[string]string{"TANDEM_CUDA_GRAPH": "off"}}) {
		return
	}
	for _, p := range []nn.Precision{nn.BF16, nn.FP16} {
		want, got := trained(t, 4, dp.DeviceIDs(dp.Host), dp.WithPrecision(p)), trained(t, 4, dp.DeviceIDs(0), dp.WithPrecision(p))
		for i := range want {
			if d := math.Abs(float64(got[i] - want[i])); !(d < 1e-3) {
				t.Errorf("%v: number %d is %v, on the host %v", p, i, got[i], want[i])
				break
			}
		}
		if p != nn.BF16 {
			continue
		}
		if inParts := trained(t, 4, dp.DeviceIDs(0), dp.WithPrecision(p), dp.MicroBatches(2)); slices.Equal(inParts, got) {
			t.Errorf("%v: in parts, of which gradients are added up in float32, the numbers are the same", p)
		}
	}
}

// TestCheckpointOnCards: training that ends in the middle, and goes on from a checkpoint, comes to the same bits: where parameters have a copy in
// halves, and where linked cards have shares of what the optimizer remembers.
func TestCheckpointOnCards(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024, 1024}, Kernels: true}) {
		return
	}
	for name, opts := range map[string][]dp.Option{
		"bf16": {dp.DeviceIDs(1), dp.WithPrecision(nn.BF16)}, "fp16": {dp.DeviceIDs(0, 2), dp.WithPrecision(nn.FP16)}, "sharded": {dp.WithStrategy(dp.Sharded)},
	} {
		file := filepath.Join(t.TempDir(), "checkpoint")
		if want, got := trained(t, 4, opts...), trainedOn(t, perceptron, 4, numbers(4), file, opts...); !slices.Equal(got, want) {
			t.Errorf("%s: comes to %v, without an end to %v", name, got, want)
		}
	}
}

// What variables don't take is told.
func TestVariablesOfCards(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Kernels: true}) {
		return
	}
	for _, variable := range []string{"TANDEM_CUDA_GRAPH", "TANDEM_CUDA_BRANCHES"} {
		t.Setenv(variable, "0")
		d, err := dp.New(perceptron(), nn.CrossEntropy(), nn.SGD(0.1))
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Forward(t.Context(), numbers(2)(0))
		if want := variable + ` is "0": it takes on or off`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %s", err, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		t.Setenv(variable, "on")
	}
}

func perceptron() nn.Module { return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)) }

// numbers are inputs of n samples for perceptron.
func numbers(n int) func(step int) *tensor.Dense {
	return func(step int) *tensor.Dense {
		x := make([]float32, 5*n)
		for i := range x {
			x[i] = float32(math.Sin(float64(1 + i + step)))
		}
		return tensor.New(tensor.WithShape(n, 5), tensor.WithBacking(x))
	}
}

// trained makes three steps that are not waited for, and gives their losses and all parameters.
func trained(t *testing.T, n int, opts ...dp.Option) []float32 {
	t.Helper()
	return trainedOn(t, perceptron, n, numbers(n), "", opts...)
}

// trainedOnMany is trained for a model of two million parameters, most of which are in a table.
func trainedOnMany(t *testing.T, n int, opts ...dp.Option) []float32 {
	t.Helper()
	const rows = 420_000
	model := func() nn.Module {
		return nn.Sequential(nn.Embedding(rows, 5), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
	}
	return trainedOn(t, model, n, func(step int) *tensor.Dense {
		x := make([]int32, n)
		for i := range x {
			x[i] = int32(i+step) * 7919 % rows
		}
		return tensor.New(tensor.WithShape(n), tensor.WithBacking(x))
	}, "", opts...)
}

// trainedOn is trained for any model. Where there is a file, the last step is another trainer's, which goes on from there.
func trainedOn(t *testing.T, model func() nn.Module, n int, input func(step int) *tensor.Dense, file string, opts ...dp.Option) []float32 {
	t.Helper()
	begin := func() *dp.DataParallel {
		d, err := dp.New(model(), nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)), append(opts, dp.Seed(2))...)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := begin()
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	var losses []*dp.Loss
	for step := range 3 {
		if file != "" && step == 2 {
			if err := errors.Join(d.SaveCheckpoint(file), d.Close()); err != nil {
				t.Fatal(err)
			}
			d = begin()
			if err := d.LoadCheckpoint(file); err != nil {
				t.Fatal(err)
			}
		}
		y := make([]int32, n)
		for i := range y {
			y[i] = int32((i + step) % 3)
		}
		l, err := d.StepAsync(t.Context(), input(step), tensor.New(tensor.WithShape(n), tensor.WithBacking(y)))
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, l)
	}
	var out []float32
	for _, l := range losses {
		loss, err := l.Value()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, float32(loss))
	}
	sd, err := d.StateDict()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range sd.All() {
		switch x := v.Data().(type) {
		case []float32:
			out = append(out, x...)
		case float32:
			out = append(out, x)
		}
	}
	return out
}
