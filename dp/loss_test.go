package dp_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// runsAhead makes a device whose programs can be started and waited for. It computes at once, keeps errors until they are asked for, and
// counts what is under way.
type runsAhead struct {
	ir.Device
	*flight
}

type flight struct {
	under, most int
	fail        uint64 // the run that fails; 0: none
}

func (d runsAhead) Load(p *ir.Program, mem [ir.NumRegions]ir.DeviceMemory) (ir.Executable, error) {
	e, err := d.Device.Load(p, mem)
	return &started{Executable: e, flight: d.flight, output: mem[ir.Output], outputs: map[uint64][]byte{}}, err
}

var errLate = errors.New("the card fell off")

type started struct {
	ir.Executable
	*flight
	runs    uint64
	output  ir.DeviceMemory
	outputs map[uint64][]byte // by run
}

func (s *started) Start(ctx context.Context, rt *ir.Runtime) (uint64, error) {
	s.runs++
	s.under++
	s.most = max(s.most, s.under)
	if err := s.Run(ctx, rt); err != nil {
		return 0, err
	}
	if s.output == nil {
		return s.runs, nil
	}
	out := make([]byte, min(s.output.Len(), ir.LateBytes))
	s.outputs[s.runs] = out
	return s.runs, s.output.Read(0, out)
}

func (s *started) Wait(run uint64, out []byte) error {
	s.under--
	if run == s.fail {
		return errLate
	}
	copy(out, s.outputs[run])
	return nil
}

// TestErrorsComeLate: the step that failed says so, and so does the next one; the others have their losses.
func TestErrorsComeLate(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	tk := tasks()[0]
	x, y := batches(tk, 1, 6)
	f := &flight{fail: 2}
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.WrapDevices(func(d ir.Device) ir.Device { return runsAhead{d, f} }))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	var losses []*dp.Loss
	var failed error
	for range 6 {
		l, err := d.StepAsync(t.Context(), x[0], y[0])
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		losses = append(losses, l)
	}
	if !errors.Is(failed, errLate) {
		t.Errorf("StepAsync gave %v, want the error of the step before", failed)
	}
	for i, l := range losses {
		if _, err := l.Value(); errors.Is(err, errLate) != (i == 1) {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if f.most != 3 || f.under != 0 {
		t.Errorf("%d steps were under way at most, %d still are; want 3 and 0", f.most, f.under)
	}
}

// TestStepAsync gives the losses that Step gives, whether the values are asked for at once, late, or in another order, on devices that can
// run ahead and on those that can't.
func TestStepAsync(t *testing.T) {
	for _, tk := range tasks() {
		for _, order := range []string{"on the host", "at once", "late", "backwards"} {
			t.Run(tk.name+"/"+order, func(t *testing.T) {
				cudaopstest.Setup(t, "", "")
				x, y := batches(tk, 7, 6)
				want := alone(t, tk, x, y)
				var got result
				opts := append([]dp.Option{dp.Seed(3)}, tk.opts...)
				if order != "on the host" {
					opts = append(opts, dp.WrapDevices(func(d ir.Device) ir.Device { return runsAhead{d, new(flight)} }))
				}
				d, err := dp.New(tk.model(), tk.loss(), tk.opt(), opts...)
				if err != nil {
					t.Fatal(err)
				}
				defer closed(t, d)
				var losses []*dp.Loss
				for i := range x {
					l, err := d.StepAsync(t.Context(), x[i], y[i])
					if err != nil {
						t.Fatal(err)
					}
					losses = append(losses, l)
					if order == "at once" {
						if _, err := l.Value(); err != nil {
							t.Fatal(err)
						}
					}
				}
				got.losses = make([]float64, len(losses))
				for i := range losses {
					if order == "backwards" {
						i = len(losses) - 1 - i
					}
					if got.losses[i], err = losses[i].Value(); err != nil {
						t.Fatal(err)
					}
				}
				got.params = state(t, d)
				sameTraining(t, got, want)
				if p := d.Progress(); p.Steps != 7 || p.Samples != 7*6 || p.Loss != want.losses[6] {
					t.Errorf("%+v", p)
				}
			})
		}
	}
}

// TestUploadedBatch gives the losses that sending the batch gives, on the host, on cards, with micro-batches, and where steps run ahead.
func TestUploadedBatch(t *testing.T) {
	for _, tk := range tasks() {
		for name, opts := range map[string][]dp.Option{
			"":              nil,
			"micro-batches": {dp.MicroBatches(2)},
			"ahead":         {dp.WrapDevices(func(d ir.Device) ir.Device { return runsAhead{d, new(flight)} })},
		} {
			t.Run(tk.name+"/"+name, func(t *testing.T) {
				cudaopstest.Setup(t, "3", "")
				x, y := batches(tk, 2, 7)
				var results [2]result
				for i := range results {
					d, err := dp.New(tk.model(), tk.loss(), tk.opt(), append(append([]dp.Option{dp.Seed(3)}, tk.opts...), opts...)...)
					if err != nil {
						t.Fatal(err)
					}
					var up [2]*dp.Batch
					for k := range up {
						if up[k], err = d.Upload(x[k], y[k]); err != nil {
							t.Fatal(err)
						}
					}
					for step := range 6 {
						k := step % 2
						var l *dp.Loss
						if i == 0 {
							l, err = d.StepAsync(t.Context(), x[k], y[k])
						} else {
							l, err = d.StepBatch(t.Context(), up[k])
						}
						if err != nil {
							t.Fatal(err)
						}
						loss, err := l.Value()
						if err != nil {
							t.Fatal(err)
						}
						results[i].losses = append(results[i].losses, loss)
					}
					results[i].params = state(t, d)
					for _, b := range up {
						if err := errors.Join(b.Free(), b.Free()); err != nil {
							t.Error(err)
						}
					}
					if _, err := d.StepBatch(t.Context(), up[0]); err == nil {
						t.Error("a freed batch was trained on")
					}
					if _, err := d.StepBatch(t.Context(), nil); err == nil {
						t.Error("no batch was trained on")
					}
					closed(t, d)
				}
				if !slices.Equal(results[0].losses, results[1].losses) || !slices.Equal(results[0].params, results[1].params) {
					t.Errorf("uploaded: losses %v, sent: %v", results[1].losses, results[0].losses)
				}
			})
		}
	}
}

// TestStepAsyncRefuses what Step refuses.
func TestStepAsyncRefuses(t *testing.T) {
	cudaopstest.Setup(t, "", "")
	d, err := dp.New(mlp(), nn.CrossEntropy(), nn.SGD(0.1))
	if err != nil {
		t.Fatal(err)
	}
	x, y := batchOf(rand.New(rand.NewPCG(1, 1)), 4, []int{12}, 5)
	y.Int32s()[2] = 7
	var index *ir.IndexError
	if _, err := d.StepAsync(t.Context(), x, y); !errors.As(err, &index) {
		t.Errorf("a label out of range gave %v", err)
	}
	closed(t, d)
	if _, err := d.StepAsync(t.Context(), x, y); !errors.Is(err, dp.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
