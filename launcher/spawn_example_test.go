//go:build linux

package launcher_test

import (
	"context"
	"fmt"
	"os"

	"github.com/tandem-train/tandem/launcher"
)

// The function "hello" prints its rank. It is registered in main, or here in TestMain, followed by launcher.Init.
func ExampleSpawn() {
	err := launcher.Spawn(context.Background(), 2, "hello", func(c *launcher.Config) { c.Stdout = os.Stdout })
	fmt.Println("ended:", err)
	// Unordered output:
	// [rank0]: hello from 0
	// [rank1]: hello from 1
	// ended: <nil>
}
