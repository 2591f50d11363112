package main

import (
	"context"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/idx"
)

const (
	side      = 28
	imageSize = side * side
)

// Mean and standard deviation of the training images' pixels, of which each is 0..1.
const (
	pixelMean = 0.1307
	pixelStd  = 0.3081
)

// normal is the normalised value of each byte of an image: (byte/255 - mean) / std.
var normal = func() (table [256]float32) {
	for b := range table {
		table[b] = float32((float64(b)/255 - pixelMean) / pixelStd)
	}
	return table
}()

// digits is MNIST's training or test set, as a [data.Dataset]: images (1, 28, 28) float32 and labels () int32. It keeps the
// bytes of the files, a quarter of the memory, and normalises what a batch needs.
type digits struct {
	images []byte // n x 28 x 28
	labels []byte // n
}

// loadDigits reads both sets from a folder, or, if that is empty, from the module that ships them.
func loadDigits(dir string) (train, test *digits, err error) {
	flag := ""
	if dir != "" {
		flag = "--data " + dir + ": "
	} else if dir, err = idx.ModuleDir(); err != nil {
		return nil, nil, fmt.Errorf("--data: %w", err)
	}
	trainX, trainY, testX, testY, err := idx.MNIST(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("%s%w", flag, err)
	}
	return &digits{trainX.Data, trainY.Data}, &digits{testX.Data, testY.Data}, nil
}

// Len implements [data.Dataset].
func (d *digits) Len() int { return len(d.labels) }

// Specs implements [data.Dataset].
func (d *digits) Specs() (x, y data.Spec) {
	return data.Spec{Shape: tensor.Shape{1, side, side}, Dtype: tensor.Float32}, data.Spec{Dtype: tensor.Int32}
}

// Batch implements [data.Dataset].
func (d *digits) Batch(_ context.Context, indices []int, x, y *tensor.Dense) error {
	pixels, labels := x.Float32s(), y.Int32s()
	for row, i := range indices {
		image := d.images[i*imageSize : (i+1)*imageSize]
		to := pixels[row*imageSize : (row+1)*imageSize]
		for k, b := range image {
			to[k] = normal[b]
		}
		labels[row] = int32(d.labels[i])
	}
	return nil
}
