package comm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tandem-train/tandem/dp/comm"
)

func ExampleNewLocal() {
	group, err := comm.NewLocal(3)
	if err != nil {
		fmt.Println(err)
		return
	}
	sums := make([][]float32, len(group))
	var ranks sync.WaitGroup
	for r, c := range group {
		ranks.Go(func() {
			gradients := []float32{float32(r), 1}
			if err := c.AllReduce(context.Background(), gradients); err != nil {
				fmt.Println(err)
			}
			sums[r] = gradients
		})
	}
	ranks.Wait()
	fmt.Println(sums)
	// Output: [[3 3] [3 3] [3 3]]
}

func ExampleComm_abort() {
	group, err := comm.NewLocal(2)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Rank 1 cannot go on. Rank 0 need not wait for it.
	group[1].Abort(errors.New("out of memory"))
	fmt.Println(group[0].Barrier(context.Background()))
	// Output: comm: group was broken by rank 1: out of memory
}
