package philox_test

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/philox"
)

// Two ranks make the two halves of one dropout mask.
func ExampleStream_FillBernoulli() {
	s := philox.New(42, 3) // seed 42, op 3

	whole := make([]float32, 8)
	s.FillBernoulli(whole, 0, 0.5, 2)

	halves := make([]float32, 8)
	s.FillBernoulli(halves[:3], 0, 0.5, 2)
	s.FillBernoulli(halves[3:], 3, 0.5, 2)

	fmt.Println(whole)
	fmt.Println(halves)
	// Output:
	// [2 2 0 0 0 2 0 2]
	// [2 2 0 0 0 2 0 2]
}

func ExamplePerm() {
	fmt.Println(philox.Perm(1, 0, 8))
	fmt.Println(philox.Perm(1, 1, 8))
	// Output:
	// [1 0 6 2 3 5 4 7]
	// [3 4 0 6 1 5 7 2]
}
