//go:build linux

package launcher_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tandem-train/tandem/launcher"
)

func ExampleRun() {
	err := launcher.Run(context.Background(), launcher.Config{
		Program: "sh",
		Args:    []string{"-c", "echo $RANK of $WORLD_SIZE"},
		Workers: make([]launcher.Worker, 2),
		Stdout:  os.Stdout,
	})
	fmt.Println("ended:", err)
	// Unordered output:
	// [rank0]: 0 of 2
	// [rank1]: 1 of 2
	// ended: <nil>
}

func ExampleJobError() {
	err := launcher.Run(context.Background(), launcher.Config{
		Program: "sh",
		Args:    []string{"-c", "[ $RANK = 0 ] && exec sleep 1000; echo no data >&2; exit 3"},
		Workers: make([]launcher.Worker, 2),
		Stderr:  io.Discard,
	})
	var failed *launcher.JobError
	if errors.As(err, &failed) {
		root := failed.Root()
		fmt.Printf("rank %d: %s: %s\n", root.Rank, root.Error, root.Tail)
		fmt.Println("this process should exit with", failed.ExitCode())
	}
	// Output:
	// rank 1: exit status 3: no data
	// this process should exit with 3
}

// The function "hello" prints its rank. It is registered in main, or here in TestMain, followed by launcher.Init.
func ExampleSpawn() {
	err := launcher.Spawn(context.Background(), 2, "hello", func(c *launcher.Config) { c.Stdout = os.Stdout })
	fmt.Println("ended:", err)
	// Unordered output:
	// [rank0]: hello from 0
	// [rank1]: hello from 1
	// ended: <nil>
}
