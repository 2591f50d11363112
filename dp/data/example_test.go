package data_test

import (
	"context"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp/data"
)

func Example() {
	x := tensor.New(tensor.WithShape(5, 2), tensor.WithBacking([]float32{0, 0, 1, 10, 2, 20, 3, 30, 4, 40}))
	y := tensor.New(tensor.WithShape(5), tensor.WithBacking([]int32{0, 1, 0, 1, 0}))
	ds, err := data.NewTensorDataset(x, y)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := data.NewLoader(ds, 2, data.Shuffle(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	for epoch := range 2 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(epoch, batch.Step, batch.Indices, batch.X.Data(), batch.Y.Data())
		}
	}
	// Output:
	// 0 0 [3 1] [3 30 1 10] [1 1]
	// 0 1 [4 2] [4 40 2 20] [0 0]
	// 0 2 [0] [0 0] [0]
	// 1 0 [2 1] [2 20 1 10] [0 1]
	// 1 1 [4 3] [4 40 3 30] [0 1]
	// 1 2 [0] [0 0] [0]
}

// pixels is a dataset of one's own: images kept as bytes, which take a quarter of
// the memory, and turned into floats as they are batched.
type pixels struct {
	size   int    // pixels of an image
	images []byte // n x size
	labels []byte // n
}

func (p *pixels) Len() int { return len(p.labels) }

func (p *pixels) Specs() (x, y data.Spec) {
	return data.Spec{Shape: tensor.Shape{p.size}, Dtype: tensor.Float32}, data.Spec{Dtype: tensor.Int32}
}

func (p *pixels) Batch(_ context.Context, indices []int, x, y *tensor.Dense) error {
	xs, ys := x.Data().([]float32), y.Data().([]int32)
	for row, i := range indices {
		for j, b := range p.images[i*p.size : (i+1)*p.size] {
			xs[row*p.size+j] = float32(b) / 255
		}
		ys[row] = int32(p.labels[i])
	}
	return nil
}

func ExampleDataset() {
	ds := &pixels{size: 2, images: []byte{0, 255, 51, 102, 255, 0}, labels: []byte{7, 8, 9}}
	loader, err := data.NewLoader(ds, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.X.Data(), batch.Y.Data(), err)
	}
	// Output:
	// [0 1 0.2 0.4] [7 8] <nil>
	// [1 0] [9] <nil>
}

// Nine samples over four ranks: the last rank stays in step with empty batches.
func ExampleShard() {
	ds := &pixels{size: 1, images: make([]byte, 9), labels: make([]byte, 9)}
	for rank := range 4 {
		loader, err := data.NewLoader(ds, 9, data.Shard(rank, 4))
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			fmt.Println(rank, batch.Indices, batch.Len(), "of", batch.GlobalSize, err)
		}
	}
	// Output:
	// 0 [0 1 2] 3 of 9 <nil>
	// 1 [3 4 5] 3 of 9 <nil>
	// 2 [6 7 8] 3 of 9 <nil>
	// 3 [] 0 of 9 <nil>
}

func ExampleChunks() {
	fmt.Println(data.Chunks(9, 4))
	// Output: [{0 3} {3 6} {6 9}]
}
