package dp_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/ir"
)

// fed is what came of training on batches of several sizes.
type fed struct {
	result
	told, inputs, held int64  // bytes
	log                string // warnings
}

// feedSimulated is feed on a simulated card.
func feedSimulated(t *testing.T, mib int64, ahead bool) (fed, error) {
	cudaopstest.Setup(t, fmt.Sprintf("1x%dMiB", mib), "")
	return feed(t, ahead, dp.WrapDevices(func(d ir.Device) ir.Device { return runsAhead{d, new(flight)} }))
}

// feed trains on card 0, sending each batch ahead of the step or after the one before.
func feed(t *testing.T, ahead bool, opts ...dp.Option) (f fed, err error) {
	tk := tasks()[0]
	var text bytes.Buffer
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), append(opts, dp.Seed(3), dp.DeviceIDs(0), dp.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))...)
	if err != nil {
		return f, err
	}
	defer closed(t, d)
	var late []func() (float64, error)
	for _, n := range []int{23_000, 30_000, 23_000, 10, 23_000, 30_000} {
		x, y := batches(tk, 1, n)
		if !ahead {
			loss, err := d.Step(t.Context(), x[0], y[0])
			late = append(late, func() (float64, error) { return loss, err })
			continue
		}
		l, err := d.StepAsync(t.Context(), x[0], y[0])
		if err != nil {
			return f, err
		}
		late = append(late, l.Value)
	}
	for _, value := range late {
		loss, err := value()
		if err != nil {
			return f, err
		}
		f.losses = append(f.losses, loss)
	}
	f.params = state(t, d)
	if f.held, err = cudaops.MemoryAllocated(0); err != nil {
		return f, err
	}
	told := d.Memory()[0]
	f.told, f.inputs, f.log = told.Total(), told.Inputs, text.String()
	return f, nil
}

// TestSecondInput: batches that are sent ahead give the losses of those that are not, whatever their sizes; the memory for that is told,
// and where there is none training goes on without, which is said once.
func TestSecondInput(t *testing.T) {
	want, err := feedSimulated(t, 64, false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := feedSimulated(t, 64, true)
	if err != nil {
		t.Fatal(err)
	}
	sameTraining(t, got.result, want.result)
	if got.told != got.held || want.told != want.held {
		t.Errorf("%d and %d bytes told, %d and %d held", want.told, got.told, want.held, got.held)
	}
	if more, least := got.inputs-want.inputs, int64(30_000*12*4); more < least || got.log != "" {
		t.Errorf("sent ahead, inputs take %d bytes more, want at least %d; log %q", more, least, got.log)
	}
	// The smallest card that has room without a second input.
	size := want.held >> 20
	for {
		_, err := feedSimulated(t, size, false)
		var full *cudaops.OutOfMemoryError
		if err == nil {
			break
		}
		if !errors.As(err, &full) || size > 64 {
			t.Fatalf("on a card of %d MiB: %v", size, err)
		}
		size++
	}
	got, err = feedSimulated(t, size, true)
	if err != nil {
		t.Fatal(err)
	}
	sameTraining(t, got.result, want.result)
	if n := strings.Count(got.log, "no room for a second input"); n != 1 {
		t.Errorf("on a card of %d MiB: said %d times; log %q", size, n, got.log)
	}
}

// TestCardSecondInput is on a card.
func TestCardSecondInput(t *testing.T) {
	needCard(t)
	want, err := feed(t, false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := feed(t, true)
	if err != nil {
		t.Fatal(err)
	}
	sameTraining(t, got.result, want.result)
	if got.inputs <= want.inputs {
		t.Errorf("inputs take %d bytes, as many as when each step is waited for", got.inputs)
	}
}
