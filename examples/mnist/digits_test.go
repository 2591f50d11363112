package main

import (
	"math"
	"testing"

	"gorgonia.org/tensor"
)

func TestDigits(t *testing.T) {
	whole, err := wholeMNIST()
	if err != nil {
		t.Fatal(err)
	}
	train, test := whole[0], whole[1]
	if train.Len() != 60000 || test.Len() != 10000 {
		t.Errorf("%d and %d images, want 60000 and 10000", train.Len(), test.Len())
	}
	var count [256]float64
	for _, b := range train.images {
		count[b]++
	}
	var sum, squares float64
	for b, n := range count {
		sum += n * float64(normal[b])
		squares += n * float64(normal[b]) * float64(normal[b])
	}
	n := float64(len(train.images))
	if mean, variance := sum/n, squares/n; math.Abs(mean) > 1e-3 || math.Abs(variance-1) > 1e-3 {
		t.Errorf("normalised pixels have mean %v and mean square %v, want 0 and 1", mean, variance)
	}
}

func TestDigitsBatch(t *testing.T) {
	d := &digits{images: make([]byte, 3*imageSize), labels: []byte{4, 5, 6}}
	d.images[2*imageSize+1] = 255
	x := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(2, 1, side, side))
	y := tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(2))
	if err := d.Batch(t.Context(), []int{2, 0}, x, y); err != nil {
		t.Fatal(err)
	}
	pixels, labels := x.Float32s(), y.Int32s()
	black, white := float32(-0.1307/0.3081), float32((1-0.1307)/0.3081)
	if pixels[0] != black || pixels[1] != white || pixels[imageSize+1] != black || labels[0] != 6 || labels[1] != 4 {
		t.Errorf("pixels %v, %v and %v, labels %v; want %v, %v, %v and [6 4]", pixels[0], pixels[1], pixels[imageSize+1], labels, black, white, black)
	}
}
