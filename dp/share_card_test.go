package dp_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// sharers are how many processes share a card, each with its part of the memory.
const sharers = 4

// TestCardShared: processes train beside each other on a card, each within its part of the memory whenever one looks. One batch is the
// largest that its plan allows, so that it comes near the cap.
func TestCardShared(t *testing.T) {
	if part := os.Getenv(memoryVariable); part != "" {
		trainInPart(t, part)
		return
	}
	needCard(t)
	card, err := cudaops.DeviceProperties(0) // without a context of its own, for which there would be no room
	if err != nil {
		t.Fatal(err)
	}
	limit := card.TotalMemory / sharers
	var outs [sharers]bytes.Buffer
	ended := make(chan error, sharers)
	for i := range sharers {
		c := again(t, t.Name(), strconv.Itoa(i))
		c.Stdout, c.Stderr = &outs[i], &outs[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- c.Wait() }()
	}
	looks, together, most := 0, 0, int64(0)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for running := sharers; running > 0; {
		select {
		case err := <-ended:
			running--
			if err != nil {
				t.Errorf("a process: %v", err)
			}
		case <-tick.C:
			used := usedByProcesses(t)
			looks++
			if len(used) >= sharers {
				together++
			}
			for pid, bytes := range used {
				most = max(most, bytes)
				if bytes > limit {
					t.Errorf("look %d: process %d has %s of the card, more than its %s", looks, pid, cudaops.FormatSize(bytes), cudaops.FormatSize(limit))
				}
			}
		}
	}
	t.Logf("%d looks, %d of them at %d processes; at most %s of %s", looks, together, sharers, cudaops.FormatSize(most), cudaops.FormatSize(limit))
	if together == 0 || most < limit*98/100 {
		t.Error("the caps were not put to the test")
	}
	for i := range outs {
		if t.Failed() || testing.Verbose() {
			t.Logf("process %d:\n%s", i, outs[i].String())
		}
	}
}

// trainInPart is a process of that test.
func trainInPart(t *testing.T, part string) {
	if err := cudaops.SetPerProcessMemoryFraction(1.0/sharers, 0); err != nil {
		t.Fatal(err)
	}
	tk := cardNets()["cnn"]
	d, err := dp.New(tk.model(), tk.loss(), tk.opt(), dp.DeviceIDs(0), dp.Alone(), dp.WithPrecision(nn.TF32))
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, d)
	seed, err := strconv.ParseUint(part, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	step := func(n, steps int) {
		x, y := batchOf(rng, n, tk.in, tk.out)
		for range steps {
			if _, err := d.Step(t.Context(), x, y); err != nil {
				t.Fatalf("a batch of %d: %v", n, err)
			}
		}
	}
	step(64, 200)
	plan, err := d.Plan(shapeOf(64, tk.in)...)
	if err != nil {
		t.Fatal(err)
	}
	step(plan.Largest, 3)
	if plan, err = d.Plan(shapeOf(plan.Largest, tk.in)...); err != nil {
		t.Fatal(err)
	}
	t.Logf("the largest batch: %v", plan)
	step(64, 10)
}
