package idx_test

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/idx"
)

// Two images of one row of three pixels; then the same, cut short.
func ExampleParse() {
	raw := []byte{
		0, 0, 0x08, 3, // unsigned bytes, three dimensions
		0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3,
		10, 20, 30, 40, 50, 60,
	}
	a, err := idx.Parse(raw)
	fmt.Printf("%v %d %v\n", a.Dims, a.Data, err)
	_, err = idx.Parse(raw[:len(raw)-1])
	fmt.Println(err)
	// Output:
	// [2 1 3] [10 20 30 40 50 60] <nil>
	// idx: truncated: the header promises 2x1x3 = 6 bytes of data, the file has 5
}
