package jobtest

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// mnistReport is what examples/mnist writes, as far as it matters here.
type mnistReport struct {
	TrainLoss    float64 `json:"train_loss"`
	TestAccuracy float64 `json:"test_accuracy"`
	Steps        int     `json:"steps"`
	WorldSize    int     `json:"world_size"`
	Strategy     string  `json:"strategy"`
	L2           float64 `json:"parameters_l2"`
	SHA256       string  `json:"parameters_sha256"`
	Devices      []struct {
		Logical  int  `json:"logical"`
		Physical int  `json:"physical"`
		Primary  bool `json:"primary"`
	} `json:"devices"`
}

// train runs a command, which ends with flags of examples/mnist, on four simulated cards, and reads the report.
func train(t *testing.T, command ...string) mnistReport {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(command[0], append(command[1:], "--max-steps", "50", "--batch-size", "250", "--no-progress", "--report", path)...)
	cmd.Env = append(os.Environ(), "TANDEM_SIM_CARDS=4")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r mnistReport
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestProcessesEqualOneProcess: the example as four processes gives the numbers of one process on four cards, with each strategy and fed in
// both ways, and the same bits when it runs again.
func TestProcessesEqualOneProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("trains on MNIST a dozen times")
	}
	mnist := filepath.Join(t.TempDir(), "mnist")
	if out, err := exec.Command("go", "build", "-o", mnist, "github.com/tandem-train/tandem/examples/mnist").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	processes := func(flags ...string) mnistReport {
		return train(t, append([]string{tandem, "run", "--nproc-per-node", "4", mnist}, flags...)...)
	}
	one := train(t, mnist)
	for _, strategy := range []string{"gather", "allreduce", "sharded"} {
		for _, feed := range []string{"scatter", "shard"} {
			t.Run(fmt.Sprintf("%s/%s", strategy, feed), func(t *testing.T) {
				four := processes("--strategy", strategy, "--feed", feed)
				if four.WorldSize != 4 || four.Steps != 50 || four.Strategy != strategy {
					t.Fatalf("trained %d steps on %d ranks with %s", four.Steps, four.WorldSize, four.Strategy)
				}
				if d := relative(four.L2, one.L2); !(d <= 1e-5) {
					t.Errorf("parameters_l2 %v, of one process %v: relative difference %.2g", four.L2, one.L2, d)
				}
				if d := relative(four.TrainLoss, one.TrainLoss); !(d <= 1e-4) {
					t.Errorf("train_loss %v, of one process %v: relative difference %.2g", four.TrainLoss, one.TrainLoss, d)
				}
				if d := math.Abs(four.TestAccuracy - one.TestAccuracy); !(d <= 0.002) {
					t.Errorf("test_accuracy %v, of one process %v", four.TestAccuracy, one.TestAccuracy)
				}
				if again := processes("--strategy", strategy, "--feed", feed); again.SHA256 != four.SHA256 {
					t.Errorf("the same job twice gives parameters %s and %s", four.SHA256, again.SHA256)
				}
			})
		}
	}
	t.Run("primary card", func(t *testing.T) {
		r := train(t, tandem, "run", "--devices", "3,2,0,1", mnist)
		if len(r.Devices) != 1 || r.Devices[0].Logical != 0 || r.Devices[0].Physical != 3 || !r.Devices[0].Primary || r.WorldSize != 4 {
			t.Errorf("rank 0 of %d has %+v, want physical card 3 as its card 0", r.WorldSize, r.Devices)
		}
	})
}

func relative(a, b float64) float64 { return math.Abs(a-b) / math.Max(math.Abs(a), math.Abs(b)) }
