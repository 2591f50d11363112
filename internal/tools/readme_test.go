package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/launcher"
)

// The README's program wants cards 0, 2 and 3.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"TANDEM_SIM_CARDS": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "CUDA_DEVICE_LIMIT": ""} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	m.Run()
}

// TestReadme sees that the program that the README shows is the one that Example runs.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("readme_example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(readme), "```go\n")
	shown, _, found := strings.Cut(shown, "\n```")
	if !found {
		t.Fatal("README.md has no block of Go code")
	}
	if !strings.Contains(string(source), "\n"+shown+"\n") {
		t.Errorf("README.md shows another program than readme_example_test.go runs; it shows:\n%s", shown)
	}
}

// TestReadmeAsProcesses runs the README's program as the processes of a job, each with a card of its own, so without DeviceIDs.
func TestReadmeAsProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	source, err := os.ReadFile("readme_example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	source = regexp.MustCompile(`.*dp\.DeviceIDs\(.*\n`).ReplaceAll(source, nil)
	main := strings.NewReplacer("package tools", "package main", "func Example()", "func main()").Replace(string(source))
	file, program := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "readme")
	if err := os.WriteFile(file, []byte(main), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var out strings.Builder
	workers := []launcher.Worker{{Env: []string{"CUDA_VISIBLE_DEVICES=0"}}, {Env: []string{"CUDA_VISIBLE_DEVICES=1"}}}
	err = launcher.Run(t.Context(), launcher.Config{Program: program, Workers: workers, Stdout: &out, Stderr: &out})
	const want = "[rank0]: 2 cards, 40 steps, learned: true\n[rank0]: (200, 10) [1.fc.weight 1.fc.bias 2.weight 2.bias]\n"
	if err != nil || out.String() != want {
		t.Errorf("%v; it prints\n%swant\n%s", err, &out, want)
	}
}
