package dp_test

import (
	"testing"

	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/dp"
)

// TestTimeline: at its peak the spans are what the plan says, and nothing was run or allocated.
func TestTimeline(t *testing.T) {
	cudaopstest.Setup(t, "1x64MiB", "")
	tk := deep(16)
	d, err := dp.New(tk.model(), tk.loss(), tk.opt())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	before, _ := held(t, 0)
	l, err := d.Timeline(200, 16)
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := held(t, 0); after != before || d.Steps() != 0 {
		t.Errorf("%d bytes taken, %d steps done", after-before, d.Steps())
	}
	at := int64(0)
	for _, s := range l.Spans {
		if s.From <= l.Peak && l.Peak <= s.To {
			at += s.Bytes
		}
	}
	whole := l.Plan.Cards[0].Activations
	if at != l.Bytes || at > whole || at < whole*9/10 || l.Steps[l.Peak] == "" {
		t.Errorf("the peak, step %d %q, has %d bytes, said to be %d; activations take %d", l.Peak, l.Steps[l.Peak], at, l.Bytes, whole)
	}
	if _, err := d.Timeline(200, 17); err == nil {
		t.Error("a timeline for an input that the model can't take")
	}
}
