package cudaops_test

import (
	"errors"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// planned is a model on a card, with what its steps take foreseen.
type planned struct {
	*testing.T
	*dp.DataParallel
	width int
}

func plannedNet(t *testing.T) planned {
	t.Helper()
	const width = 20000 // so that few samples fill a card
	model := nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Dropout(0.2), nn.Linear(3, 4))
	d, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)), dp.DeviceIDs(0))
	if err != nil {
		t.Fatal(err)
	}
	return planned{t, d, width}
}

func (p planned) step(n int) error {
	x, y := make([]float32, n*p.width), make([]int32, n)
	for i := range x {
		x[i] = float32(i%19) / 19
	}
	_, err := p.Step(p.Context(), tensor.New(tensor.WithShape(n, p.width), tensor.WithBacking(x)), tensor.New(tensor.WithShape(n), tensor.WithBacking(y)))
	return err
}

// takes compares what a plan says with what is taken by a step.
func (p planned) takes(n int) *dp.Plan {
	p.Helper()
	plan, err := p.Plan(n, p.width)
	if err != nil {
		p.Fatal(err)
	}
	if err := p.step(n); err != nil {
		p.Fatal(err)
	}
	allocated, err := cudaops.MemoryAllocated(0)
	if err != nil {
		p.Fatal(err)
	}
	reserved, err := cudaops.MemoryReserved(0)
	if err != nil {
		p.Fatal(err)
	}
	c := plan.Cards[0]
	if c.Workspace == 0 || c.Total()+c.Other != allocated || c.Reserved != reserved || c.Context != 500*mib {
		p.Errorf("a batch of %d: planned %d bytes in use and %d reserved, found %d and %d\n%v", n, c.Total()+c.Other, c.Reserved, allocated, reserved, plan)
	}
	return plan
}

// TestPlanOnACard: on a card programs take working memory besides their regions, and plans foresee that to the byte, beside other programs
// too..
func TestPlanOnACard(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Context: 500, Kernels: true}) {
		return
	}
	for round := range 2 {
		p := plannedNet(t)
		first, second := p.takes(6), p.takes(5)
		if c := first.Cards[0]; c.Other != 0 || c.Unmeasured {
			t.Errorf("trainer %d: %d bytes beside the first batch, unmeasured %t", round, c.Other, c.Unmeasured)
		}
		if second.Cards[0].Other == 0 {
			t.Errorf("nothing beside the second batch\n%v", second)
		}
		again, err := p.Plan(6, p.width)
		if err != nil || again.Cards[0].Unmeasured || again.Cards[0].Workspace != first.Cards[0].Workspace {
			t.Errorf("of what is loaded: %v\n%v", err, again)
		}
		if table := again.String(); !strings.Contains(table, "  workspace ") || !strings.Contains(table, "  context ") {
			t.Errorf("no workspace or context in\n%s", table)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLargestOnACard: under a cap the largest batch of a plan fits, working memory and context included, and one that is larger does not, also
// when others have to make way for it.
func TestLargestOnACard(t *testing.T) {
	if testing.Short() {
		t.Skip("one card has nobody to race with")
	}
	const limit = 538 * mib
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{4096}, Context: 500, Kernels: true, Env: map[string]string{"CUDA_DEVICE_LIMIT": "538MiB"}}) {
		return
	}
	p := plannedNet(t)
	plan := p.takes(4)
	if plan.Largest < 20 || plan.Largest > 80 {
		t.Fatalf("the largest batch has %d samples\n%v", plan.Largest, plan)
	}
	var full *dp.FitError
	if err := p.step(plan.Largest + 1); !errors.As(err, &full) || full.Plan.Fits() {
		t.Errorf("a step on one more: %v", err)
	}
	for _, n := range []int{plan.Largest, plan.Largest - 1, plan.Largest} { // of which none has room beside another
		again, err := p.Plan(n, p.width)
		if err != nil || !again.Fits() || again.Cards[0].Reserved+again.Cards[0].Context > limit {
			t.Errorf("a batch of %d: %v\n%v", n, err, again)
		}
		if err := p.step(n); err != nil {
			t.Error(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
