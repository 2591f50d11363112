package main

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/internal/ir"
)

// ceilings are what a card was seen to do: the rates from which floors follow.
type ceilings struct {
	copying  timing // of copyBytes, each read and written
	products timing // of one, in TF32
}

const (
	copyBytes   = 1 << 30
	productSize = 8192 // rows and columns of both matrices
)

// bytes and flops are rates a second.
func (c *ceilings) bytes() float64 { return 2 * copyBytes / c.copying.seconds }
func (c *ceilings) flops() float64 {
	return 2 * float64(productSize) * productSize * productSize / c.products.seconds
}

func (c *ceilings) rows() []row {
	return []row{
		speed("copy 1 GiB", "on the card", "bandwidth", 2*copyBytes/1e9, "GB/s", c.copying),
		speed("product 8192", "tf32", "speed", c.products.seconds*c.flops()/1e12, "TFLOP/s", c.products),
	}
}

// measureCeilings copies on the card and multiplies there.
func measureCeilings(ctx context.Context, s sampling) (c *ceilings, err error) {
	dev, err := cudaops.Open(0, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	alloc := func(n int64) (m ir.DeviceMemory) {
		if err == nil {
			m, err = dev.Alloc(n)
		}
		return m
	}
	var mem [ir.NumRegions]ir.DeviceMemory
	defer func() {
		for _, m := range mem {
			if m != nil {
				err = errors.Join(err, m.Free())
			}
		}
	}()
	mem[ir.Input], mem[ir.Output] = alloc(copyBytes), alloc(copyBytes)
	if err != nil {
		return nil, err
	}
	x := make([]float32, copyBytes/4)
	repeat(x, rand.New(rand.NewPCG(5, 6)))
	if err := mem[ir.Input].Write(0, ir.Bytes(x)); err != nil {
		return nil, err
	}
	copied := func() error { return mem[ir.Output].(ir.Copier).CopyFrom(mem[ir.Input], copyBytes) }
	multiply, done, err := squareProduct(dev, mem)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	t, err := s.measure(ctx, inOneGo(copied), inOneGo(func() error { return multiply(ctx) }))
	if err != nil {
		return nil, err
	}
	return &ceilings{copying: t[0], products: t[1]}, nil
}

// inOneGo is calls of what a card is given, until it has done all.
func inOneGo(give func() error) contender {
	return calls(give).then(func() error { return cudaops.Synchronize(0) })
}

// squareProduct loads the product of two square matrices that lie in the input.
func squareProduct(dev ir.Device, mem [ir.NumRegions]ir.DeviceMemory) (multiply func(ctx context.Context) error, done func() error, err error) {
	slot := func(r ir.Region, name string, offset int) *ir.Slot {
		return &ir.Slot{Region: r, Name: name, Shape: ir.Of(productSize, productSize), Offset: offset}
	}
	g := new(ir.Graph)
	g.Store(slot(ir.Output, "xy", 0), g.MatMul(g.Read(slot(ir.Input, "x", 0)), g.Read(slot(ir.Input, "y", productSize*productSize))))
	p, err := ir.Compile("product", [ir.NumRegions]int{}, ir.Target{TF32: true}, ir.Part{Graph: g})
	if err != nil {
		return nil, nil, err
	}
	if p.Size[ir.Work] > 0 {
		return nil, nil, errors.New("the product takes memory to work in")
	}
	e, err := dev.Load(p, mem)
	if err != nil {
		return nil, nil, err
	}
	starter, ok := e.(ir.Starter)
	if !ok {
		return nil, nil, errors.Join(errors.New("simulated cards have no speed to measure"), e.Close())
	}
	return func(ctx context.Context) error {
		_, err := starter.Start(ctx, new(ir.Runtime))
		return err
	}, e.Close, nil
}

// layer is what floors are reckoned from: the multiply-adds for a sample, the parameters, and the elements of a sample's result.
type layer struct{ macs, params, out int }

func linear(in, out int) layer { return layer{in * out, in*out + out, out} }

// conv3x3 is a convolution whose result is so many pixels wide and high.
func conv3x3(in, out, side int) layer {
	return layer{9 * in * out * side * side, 9*in*out + out, out * side * side}
}

func pooled(channels, side int) layer { return layer{0, 0, channels * side * side} }

// floor is the least time for a step, in seconds, that arithmetic and memory allow: the multiply-adds of forward and of both gradients (but
// one, since nobody asks for the input's) at the rate of products; or each parameter and its momentum read and written once, each layer's
// result written once and read once, and the batch read once, at the rate of copying. What stays in the card's cache may take less than that.
func (c *ceilings) floor(n cardNet, batch int) float64 {
	macs, params, results := -n.layers[0].macs, 0, 0
	for _, l := range n.layers {
		macs += 3 * l.macs
		params += l.params
		results += l.out
	}
	in := 1
	for _, d := range n.in {
		in *= d
	}
	flops := 2 * float64(macs) * float64(batch)
	bytes := 16*float64(params) + float64(batch)*float64(8*results+4*in)
	return max(flops/c.flops(), bytes/c.bytes())
}
