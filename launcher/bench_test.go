//go:build linux

package launcher

import (
	"context"
	"io"
	"testing"
)

// BenchmarkRun is what a job costs beside its work: two workers that end at once.
func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		if err := Run(context.Background(), Config{Program: "true", Workers: make([]Worker, 2), Stdout: io.Discard, Stderr: io.Discard}); err != nil {
			b.Fatal(err)
		}
	}
}
