package main

import (
	"os"
	"testing"

	"github.com/tandem-train/tandem/nn"
)

func Example_scaling() {
	var rows []row
	for _, c := range []cardCase{{"mlp", 64, nn.TF32}, {"cnn", 4096, nn.TF32}, {"big", 4096, nn.BF16}} {
		all := c.took(c.pipelined() + ", allreduce, 1 process")(timing{seconds: 1e-3})
		for _, one := range []float64{0.97e-3, 0.9e-3} {
			r := scaling(all, stepTime(c.name, c.batch/2, "1 card", timing{seconds: one}), 2)
			r.Suite = cardsSuite
			rows = append(rows, r)
		}
	}
	for i := range rows[:2] { // each case once
		writeGoals(os.Stdout, reached([]row{rows[i], rows[2+i], rows[4+i]}))
	}
	// Output:
	// | workload | batch | mode                                 | metric  | ours | best peer |  its | unit       | ratio |  wanted |     |
	// |----------|------:|--------------------------------------|---------|-----:|-----------|-----:|------------|------:|--------:|-----|
	// | mlp      |    64 | tf32 pipelined, allreduce, 1 process | scaling | 0.97 | 1 card    | 1.00 | of 2 cards |  1.03 |         |     |
	// | cnn      |  4096 | tf32 pipelined, allreduce, 1 process | scaling | 0.97 | 1 card    | 1.00 | of 2 cards |  1.03 | >= 0.95 | met |
	// | big      |  4096 | bf16 pipelined, allreduce, 1 process | scaling | 0.97 | 1 card    | 1.00 | of 2 cards |  1.03 | >= 0.95 | met |
	// | workload | batch | mode                                 | metric  | ours | best peer |  its | unit       | ratio |  wanted |        |
	// |----------|------:|--------------------------------------|---------|-----:|-----------|-----:|------------|------:|--------:|--------|
	// | mlp      |    64 | tf32 pipelined, allreduce, 1 process | scaling |  0.9 | 1 card    | 1.00 | of 2 cards |  1.11 |         |        |
	// | cnn      |  4096 | tf32 pipelined, allreduce, 1 process | scaling |  0.9 | 1 card    | 1.00 | of 2 cards |  1.11 | >= 0.95 | missed |
	// | big      |  4096 | bf16 pipelined, allreduce, 1 process | scaling |  0.9 | 1 card    | 1.00 | of 2 cards |  1.11 | >= 0.95 | missed |
}

// Sums have no batch, and those of a suite that is asked for twice are there twice.
func TestReachedWithoutBatch(t *testing.T) {
	sum := row{Suite: cardsSuite, Workload: "all-reduce 1 KiB", Mode: "2 cards", Metric: "time", Value: 2, Unit: microseconds}
	if list := reached([]row{sum.against("torch", 4), sum.against("torch", 3)}); len(list) != 1 || *list[0].Ratio != 2./3 {
		t.Errorf("reached %+v", list)
	}
}
