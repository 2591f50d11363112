package cudaops_test

import (
	"errors"
	"fmt"
	"os"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/testhook"
)

// simulate stands for variables that are set before the program starts.
func simulate(cards, visible, limit string) (restore func()) {
	os.Setenv("TANDEM_SIM_CARDS", cards)
	os.Setenv("CUDA_VISIBLE_DEVICES", visible)
	os.Setenv("CUDA_DEVICE_LIMIT", limit)
	testhook.Reset(false)
	return func() {
		for _, name := range []string{"TANDEM_SIM_CARDS", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_LIMIT"} {
			os.Unsetenv(name)
		}
		testhook.Reset(false)
	}
}

// With TANDEM_SIM_CARDS=4x2GiB and CUDA_VISIBLE_DEVICES=3,2,0,1.
func ExampleAvailableDevices() {
	defer simulate("4x2GiB", "3,2,0,1", "")()

	devices, err := cudaops.AvailableDevices()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range devices {
		fmt.Println(cudaops.String(d.Logical), "is physical card", d.Physical, "primary:", d.Primary)
	}
	// Output:
	// cuda:0 is physical card 3 primary: true
	// cuda:1 is physical card 2 primary: false
	// cuda:2 is physical card 0 primary: false
	// cuda:3 is physical card 1 primary: false
}

// With TANDEM_SIM_CARDS=2x16MiB, CUDA_VISIBLE_DEVICES=0,1 and
// CUDA_DEVICE_LIMIT=50%: a request that is too large says what would fit.
func ExampleAlloc() {
	defer simulate("2x16MiB", "0,1", "50%")()

	_, err := cudaops.Alloc(1, 12<<20)
	var oom *cudaops.OutOfMemoryError
	if errors.As(err, &oom) {
		fmt.Println("allowed:", oom.Limit)
		fmt.Println("would fit:", oom.Largest)
	}
	m, err := cudaops.Alloc(1, oom.Largest)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("got:", m.Len(), "on", cudaops.String(m.Device()))
	fmt.Println(m.Free())
	// Output:
	// allowed: 8.00 MiB by CUDA_DEVICE_LIMIT (50%)
	// would fit: 8388608
	// got: 8388608 on cuda:1
	// <nil>
}

// With TANDEM_SIM_CARDS=2x16MiB, CUDA_VISIBLE_DEVICES=0,1 and
// CUDA_DEVICE_LIMIT=50%: the smallest limit holds.
func ExampleMemoryLimits() {
	defer simulate("2x16MiB", "0,1", "50%")()

	if err := cudaops.SetPerProcessMemoryFraction(0.25, 0); err != nil {
		fmt.Println(err)
		return
	}
	for device := range 2 {
		limits, err := cudaops.MemoryLimits(device)
		fmt.Println(cudaops.String(device), limits, err)
	}
	// Output:
	// cuda:0 [4.00 MiB by SetPerProcessMemoryFraction (0.25) 8.00 MiB by CUDA_DEVICE_LIMIT (50%) 16.00 MiB by the card's memory] <nil>
	// cuda:1 [8.00 MiB by CUDA_DEVICE_LIMIT (50%) 16.00 MiB by the card's memory] <nil>
}

func ExampleMemorySummary() {
	defer simulate("2x16MiB", "0,1", "50%")()

	if _, err := cudaops.Alloc(0, 3<<20); err != nil {
		fmt.Println(err)
		return
	}
	table, err := cudaops.MemorySummary(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(table)
	// Output:
	// cuda:0: Tandem Simulated Card, 13.00 MiB of 16.00 MiB free
	// limit: 8.00 MiB by CUDA_DEVICE_LIMIT (50%)
	// above it: 16.00 MiB by the card's memory
	// 0 out of memory, 0 retries, 0 B inactive split
	//             metric   current      peak  total allocated  total freed
	//   allocated memory  3.00 MiB  3.00 MiB         3.00 MiB          0 B
	//         small pool       0 B       0 B              0 B          0 B
	//         large pool  3.00 MiB  3.00 MiB         3.00 MiB          0 B
	//   requested memory  3.00 MiB  3.00 MiB         3.00 MiB          0 B
	//         small pool       0 B       0 B              0 B          0 B
	//         large pool  3.00 MiB  3.00 MiB         3.00 MiB          0 B
	//    reserved memory  3.00 MiB  3.00 MiB         3.00 MiB          0 B
	//         small pool       0 B       0 B              0 B          0 B
	//         large pool  3.00 MiB  3.00 MiB         3.00 MiB          0 B
	//        allocations         1         1                1            0
	//         small pool         0         0                0            0
	//         large pool         1         1                1            0
	//           segments         1         1                1            0
	//         small pool         0         0                0            0
	//         large pool         1         1                1            0
}
