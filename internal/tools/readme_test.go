package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
