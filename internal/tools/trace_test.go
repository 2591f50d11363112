package tools

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// TestTrace takes the step that ARCHITECTURE.md traces, and sees that what the page shows of its programs is there, in that order. On the page "..."
// stands for what is left out, as names at the end of a line may be, and what follows "# update" is a note.
func TestTrace(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, traced, _ := strings.Cut(string(page), "## One step, traced\n")
	traced, _, _ = strings.Cut(traced, "\n## ")
	shown, err := blocks(traced)
	if err != nil || len(shown) != 3 {
		t.Fatalf("%d blocks, want 3: %v", len(shown), err)
	}
	dumped := dump(t)
	for _, b := range shown {
		for _, line := range b.lines {
			line, _, noted := strings.Cut(line, "# update ")
			if noted {
				line += "# update"
			}
			want := regexp.MustCompile(`(?m)^` + strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, ".*") + `(  #.*)?$`)
			if at := want.FindStringIndex(dumped); at != nil {
				dumped = dumped[at[1]:]
			} else if strings.TrimSpace(line) != "..." {
				t.Errorf("ARCHITECTURE.md shows %q, which does not come", line)
			}
		}
	}
}

// dump is what TANDEM_DUMP=ir prints of the step.
func dump(t *testing.T) string {
	t.Setenv("TANDEM_DUMP", "ir")
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	defer func(f *os.File) { os.Stderr = f }(os.Stderr)
	os.Stderr = file
	model := nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
	d, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)), dp.DeviceIDs(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	x := tensor.New(tensor.WithShape(5, 8), tensor.Of(tensor.Float32))
	if _, err := d.Step(t.Context(), x, tensor.New(tensor.WithShape(5), tensor.Of(tensor.Int32))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
