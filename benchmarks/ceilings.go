package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

// ceilings are what a card was seen to do: the rates from which floors follow.
type ceilings struct {
	copying  timing                  // of copyBytes, each read and written
	products map[nn.Precision]timing // of one
}

const (
	copyBytes   = 1 << 30
	productSize = 8192 // rows and columns of both matrices

	productElements = productSize * productSize
	productFlops    = 2. * productElements * productSize
)

// bytes and flops are rates a second.
func (c *ceilings) bytes() float64 { return 2 * copyBytes / c.copying.seconds }
func (c *ceilings) flops(p nn.Precision) float64 {
	return productFlops / c.products[p].seconds
}

func (c *ceilings) rows() []row {
	rows := []row{speed("copy 1 GiB", "on the card", "bandwidth", 2*copyBytes/1e9, "GB/s", c.copying)}
	for _, p := range productPrecisions {
		rows = append(rows, speed("product 8192", p.String(), "speed", productFlops/1e12, "TFLOP/s", c.products[p]))
	}
	return rows
}

// productPrecisions are those that cards are measured in.
var productPrecisions = []nn.Precision{nn.TF32, nn.BF16}

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
	// The matrices, and behind them their copy in halves.
	mem[ir.Params] = alloc(4 * paramWords)
	if err == nil {
		err = mem[ir.Params].(ir.Copier).CopyFrom(mem[ir.Input], 4*2*productElements)
	}
	if err != nil {
		return nil, err
	}
	contenders := []contender{inOneGo(copied)}
	for _, p := range productPrecisions {
		multiply, done, err := squareProduct(ctx, dev, mem, p)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, done()) }()
		contenders = append(contenders, inOneGo(multiply))
	}
	t, err := s.measure(ctx, contenders...)
	if err != nil {
		return nil, err
	}
	c = &ceilings{copying: t[0], products: map[nn.Precision]timing{}}
	for i, p := range productPrecisions {
		c.products[p] = t[1+i]
	}
	return c, nil
}

const paramWords = 2*productElements + productElements

// inOneGo is calls of what a card is given, until it has done all.
func inOneGo(give func() error) contender {
	return calls(give).then(func() error { return cudaops.Synchronize(0) })
}

// squareProduct loads the product of two square matrices that lie in the parameters.
func squareProduct(ctx context.Context, dev ir.Device, mem [ir.NumRegions]ir.DeviceMemory, precision nn.Precision) (multiply, done func() error, err error) {
	slot := func(r ir.Region, name string, offset int) *ir.Slot {
		return &ir.Slot{Region: r, Name: name, Shape: ir.Of(productSize, productSize), Offset: offset}
	}
	target := precision.Target(ir.TraitsOf(dev))
	_, halves := precision.Half()
	if halves {
		target.RoundedParams = 2 * 2 * productElements
	}
	load := func(name string, g *ir.Graph) (ir.Starter, error) {
		p, err := ir.Compile(name, [ir.NumRegions]int{ir.Params: paramWords}, target, ir.Part{Graph: g})
		if err != nil {
			return nil, err
		}
		if p.Size[ir.Work] > 0 {
			return nil, fmt.Errorf("the %s takes memory to work in", name)
		}
		e, err := dev.Load(p, mem)
		if err != nil {
			return nil, err
		}
		starter, ok := e.(ir.Starter)
		if !ok {
			return nil, errors.Join(errors.New("simulated cards have no speed to measure"), e.Close())
		}
		return starter, nil
	}
	if halves {
		copying, err := load("copy in halves", ir.Touch(&ir.Slot{Region: ir.Params, Name: "both", Shape: ir.Of(2 * productElements)}))
		if err != nil {
			return nil, nil, err
		}
		if err := errors.Join(copying.Run(ctx, new(ir.Runtime)), copying.Close()); err != nil {
			return nil, nil, err
		}
	}
	g := new(ir.Graph)
	g.Store(slot(ir.Output, "xy", 0), g.MatMul(g.Read(slot(ir.Params, "x", 0)), g.Read(slot(ir.Params, "y", productElements))))
	product, err := load("product", g)
	if err != nil {
		return nil, nil, err
	}
	return func() error {
		_, err := product.Start(ctx, new(ir.Runtime))
		return err
	}, product.Close, nil
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
func (c *ceilings) floor(n cardNet, batch int, precision nn.Precision) float64 {
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
	size := 8 // of a result, written and read
	if _, halves := precision.Half(); halves {
		size = 4
	}
	bytes := 16*float64(params) + float64(batch)*float64(size*results+4*in)
	return max(flops/c.flops(precision), bytes/c.bytes())
}
