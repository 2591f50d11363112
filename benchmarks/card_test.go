package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/cudaopstest"
	"github.com/tandem-train/tandem/nn"
)

func TestFloor(t *testing.T) {
	// 2 GB/s, and 8192^3 multiply-adds a second, in bf16 twice as many.
	c := &ceilings{copying: timing{seconds: copyBytes / 1e9}, products: map[nn.Precision]timing{nn.TF32: {seconds: 1}, nn.BF16: {seconds: 0.5}}}
	n := cardNet{in: []int{2, 5}, layers: []layer{linear(10, 20), linear(20, 30)}}
	if n.layers[0] != (layer{200, 220, 20}) || conv3x3(2, 3, 4) != (layer{864, 57, 48}) || pooled(3, 4) != (layer{0, 0, 48}) {
		t.Errorf("layers %v, %v, %v", n.layers[0], conv3x3(2, 3, 4), pooled(3, 4))
	}
	// 850 parameters, 50 results and 10 inputs a sample.
	for precision, size := range map[nn.Precision]float64{nn.TF32: 8, nn.BF16: 4} {
		if got, want := c.floor(n, 4, precision), (16*850+4*(size*50+4*10))/2e9; math.Abs(got-want) > 1e-12 {
			t.Errorf("%v: floor %v, by memory %v", precision, got, want)
		}
	}
	c.copying.seconds = 1e-6
	for precision, rate := range map[nn.Precision]float64{nn.TF32: 1, nn.BF16: 2} {
		if got, want := c.floor(n, 4, precision), float64(4*(3*800-200))/(1<<39)/rate; math.Abs(got-want) > 1e-15 {
			t.Errorf("%v: floor %v, by arithmetic %v", precision, got, want)
		}
	}
}

func TestRepeat(t *testing.T) {
	for _, n := range []int{0, 1, 7, 250_000} {
		x := make([]float32, n)
		repeat(x, rand.New(rand.NewPCG(1, 2)))
		for i, v := range x {
			if v == 0 {
				t.Fatalf("%d of %d is 0", i, n)
			}
		}
	}
}

// TestStart makes the steps of a process whose start is timed.
func TestStart(t *testing.T) {
	cudaopstest.Setup(t, "1", "")
	t.Setenv(startVariable, "mlp 64 tf32")
	var out bytes.Buffer
	if err := takeStart(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	var last started
	if len(lines) != 3 || lines[0] != "{}" || json.Unmarshal([]byte(lines[1]), &last) != nil || last.Memory < 3*4*669_706 {
		t.Errorf("said %q", out.String())
	}
	for _, value := range []string{"mlp", "mlp 64 tf64"} {
		t.Setenv(startVariable, value)
		if err := takeStart(t.Context(), &out); err == nil {
			t.Errorf("%s=%s: no error", startVariable, value)
		}
	}
}

// TestFirstStep makes the first step of a worker: on a card, whose memory that takes, or on the host.
func TestFirstStep(t *testing.T) {
	cudaopstest.Setup(t, "1", "")
	for on, want := range map[string]bool{atHost: false, atCards: true} {
		if err := cudaops.ResetPeakMemoryStats(0); err != nil {
			t.Fatal(err)
		}
		t.Setenv(firstStepVariable, on)
		var out bytes.Buffer
		if err := takeFirstStep(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if out.String() != firstStep+"\n" {
			t.Errorf("%s: said %q", on, out.String())
		}
		peak, err := cudaops.MaxMemoryAllocated(0)
		if err != nil {
			t.Fatal(err)
		}
		if got := peak > 4*669_706; got != want {
			t.Errorf("%s: %d bytes of the card were used", on, peak)
		}
	}
}

func TestStarter(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{`echo {}; echo '{"memory": 7}'`, ""},
		{`echo {}`, "1 lines, want 2"},
		{`echo {}; echo out of luck >&2; exit 3`, "exit status 3: out of luck"},
		{`echo {}; echo {`, "unexpected end of JSON"},
	} {
		s := &starter{argv: []string{"sh", "-c", c.script}}
		took, memory, err := s.start(context.Background())
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want %q", c.script, err, c.want)
			}
		case err != nil || memory != 7 || took <= 0:
			t.Errorf("%s: %v, %d bytes, %v", c.script, took, memory, err)
		}
	}
}

func Example_goals() {
	c := cardCase{"mlp", 64, nn.TF32}
	ours := c.took(c.pipelined())(timing{seconds: 0.06e-3})
	rows := []row{ours.against("torch eager", 0.9), ours.against("torch graph", 0.1), ours.against("floor", 0.01)}
	rows[2].limit = true
	sent := c.took(c.pipelined() + ", batch sent")(timing{seconds: 0.08e-3})
	rows = append(rows, sent.against("torch graph", 0.1))
	rows = append(rows, c.startRows([]*starter{
		{took: []float64{0.7}, memory: 60 << 20},
		{peer: "torch eager", took: []float64{5}, memory: 80 << 20},
		{peer: "torch graph", took: []float64{6}, memory: 70 << 20},
	})...)
	for i := range rows {
		rows[i].Suite = cardSuite
	}
	writeGoals(os.Stdout, reached(rows))
	// Output:
	// | workload | batch | mode                       | metric              | ours | best peer   |  its | unit | ratio |       wanted |        |
	// |----------|------:|----------------------------|---------------------|-----:|-------------|-----:|------|------:|-------------:|--------|
	// | mlp      |    64 | tf32 pipelined             | step                | 0.06 | torch graph |  0.1 | ms   |   0.6 | ratio <= 0.5 | missed |
	// | mlp      |    64 | tf32 pipelined, batch sent | step                | 0.08 | torch graph |  0.1 | ms   |   0.8 |              |        |
	// | mlp      |    64 | tf32                       | start to first step |  700 | torch eager | 5000 | ms   |  0.14 |   <= 1000 ms | met    |
	// | mlp      |    64 | tf32                       | peak memory         | 60.0 | torch graph | 70.0 | MiB  | 0.857 |   ratio <= 1 | met    |
}
