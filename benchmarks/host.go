package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/host"
	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/nn"
)

func init() {
	register(suite{"host", "training on the CPU", []workload{
		{"mlp", "steps of 784-512-512-10, batches of 64 and 1024", func(ctx context.Context, b *bench) error {
			return steps(ctx, b, mlp, 64, 1024)
		}},
		{"cnn", "steps of two 3x3 convolutions (1-32-64), 9216-128-10, batches of 64", func(ctx context.Context, b *bench) error {
			return steps(ctx, b, cnn, 64)
		}},
		{"matmul", "square products, 256 to 2048, beside the peak of multiply-adds", func(ctx context.Context, b *bench) error {
			return matmul(ctx, b, 256, 512, 1024, 2048)
		}},
		{"elementwise", "a fused loop over memory, beside copying", elementwise},
		{"loader", "shuffled batches of 64 images", loader},
	}})
}

// learningRate is that of all steps: small, so that training the same random batch again and again stays in ordinary numbers.
const learningRate = 0.01

// steps times training on batches of some sizes.
func steps(ctx context.Context, b *bench, n net, batches ...int) error {
	for _, batch := range batches {
		if err := step(ctx, b, n, batch); err != nil {
			return fmt.Errorf("batch %d: %w", batch, err)
		}
	}
	return nil
}

// step times training steps (forward, loss, backward, update by plain SGD) on one batch: of nn's layers, of the same network in
// Gorgonia's functions, and of that graph on Gorgonia's tape machine.
func step(ctx context.Context, b *bench, n net, batch int) (err error) {
	b.log("%s: %s, batch %d", b.suite, n.name, batch)
	x, y, oneHot := samples(batch)
	layers, err := newTrainer(n.layers(), nn.CrossEntropy())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layers.Close()) }()
	fns := []func() error{stepper(ctx, layers, x, y)}
	if b.wants(gorgoniaPeer) {
		var (
			model   = n.natives()
			natives *dp.DataParallel
			peer    *tape
		)
		if natives, err = newTrainer(model, nn.LossFunc(nativeLoss)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, natives.Close()) }()
		if peer, err = newTape(model, x, oneHot, learningRate); err != nil { // its parameters are what natives has drawn
			return err
		}
		defer func() { err = errors.Join(err, peer.close()) }()
		fns = append(fns, stepper(ctx, natives, x, oneHot), func() error { _, err := peer.step(); return err })
	}
	t, err := b.measure(ctx, fns...)
	if err != nil {
		return err
	}
	mode := onCores(b.cores)
	ours := stepTime(n.name, batch, mode, t[0])
	images := speed(n.name, mode, "images", float64(batch), "images/s", t[0])
	images.Batch = &batch
	if len(t) == 1 {
		b.add(ours, images)
		return nil
	}
	theirs := stepTime(n.name, batch, mode, t[2]).by(gorgoniaPeer)
	b.add(
		ours.against(gorgoniaPeer, theirs.Value), images,
		stepTime(n.name, batch, mode+", gorgonia's graph", t[1]).against(gorgoniaPeer, theirs.Value), theirs,
	)
	return nil
}

// newTrainer prepares training on the host.
func newTrainer(m nn.Module, loss nn.Loss) (*dp.DataParallel, error) {
	t, err := dp.New(m, loss, nn.SGD(learningRate), dp.DeviceIDs(dp.Host), dp.Seed(1))
	if _, ok := errors.AsType[*cudaops.InvalidDeviceError](err); ok {
		err = fmt.Errorf("this suite needs the host, which trains where no card is visible: hide them with CUDA_VISIBLE_DEVICES= (%w)", err)
	}
	return t, err
}

func stepper(ctx context.Context, t *dp.DataParallel, x, y tensor.Tensor) func() error {
	return func() error {
		_, err := t.Step(ctx, x, y)
		return err
	}
}

// coreCounts are the numbers of cores that kernels are measured on.
func (b *bench) coreCounts() []int {
	if b.cores == 1 {
		return []int{1}
	}
	return []int{1, b.cores}
}

// matmul times products of square matrices against the peak of the same cores: multiply-adds in registers, sampled in turn.
func matmul(ctx context.Context, b *bench, sizes ...int) error {
	const peakName = "fma peak"
	for _, n := range sizes {
		name := fmt.Sprintf("matmul-%d", n)
		b.log("%s: %s", b.suite, name)
		flop := 2 * float64(n) * float64(n) * float64(n)
		var one float64 // GFLOP/s of one core
		for _, cores := range b.coreCounts() {
			pool := kernel.NewPool(cores)
			g := kernel.NewGemm(pool, kernel.GemmShape{M: n, N: n, K: n})
			x, y, z := kernel.RowMajor(random(n*n), n, n), kernel.RowMajor(random(n*n), n, n), kernel.RowMajor(random(n*n), n, n)
			const flopsOfPart = 10_000_000 // some hundred microseconds: long beside handing it out
			parts := 4 * cores
			ran := make([]int, parts)
			part := func(_, i int) { ran[i] = kernel.PeakFMA(pool.Level(), flopsOfPart) }
			t, err := b.measure(ctx,
				func() error { g.Run(z, x, y, kernel.Epilogue{}); return nil },
				func() error { pool.Run(parts, part); return nil },
			)
			pool.Close()
			if err != nil {
				return err
			}
			mode, peakFlop := onCores(cores), 0
			for _, flops := range ran {
				peakFlop += flops
			}
			peak := speed(name, mode, "speed", float64(peakFlop)/1e9, "GFLOP/s", t[1]).by(peakName)
			ours := speed(name, mode, "speed", flop/1e9, "GFLOP/s", t[0]).below(peakName, peak.Value)
			b.add(ours, peak)
			if cores == 1 {
				one = ours.Value
			} else {
				b.add(row{Workload: name, Mode: mode, Metric: "scaling", Value: ours.Value / one, Unit: "times 1 core"})
			}
		}
	}
	return nil
}

// elementwise times a fused loop, relu(x + bias), whose operands lie in memory, against copying as much.
func elementwise(ctx context.Context, b *bench) (err error) {
	const rows, columns = 1 << 16, 256 // 64 MiB: more than caches hold
	const copyName = "memory copy"
	name := "bias-relu-16M"
	b.log("%s: %s", b.suite, name)
	var size [ir.NumRegions]int
	slot := func(r ir.Region, dims ...int) *ir.Slot {
		s := &ir.Slot{Region: r, Name: r.String(), Offset: size[r], Shape: dims}
		size[r] = s.End()
		return s
	}
	g := &ir.Graph{}
	x, bias := g.Read(slot(ir.Input, rows, columns)), g.Read(slot(ir.Params, columns))
	g.Store(slot(ir.Output, rows, columns), g.Map(ir.Relu, g.Plus(x, bias)))
	program, err := ir.Compile(name, size, ir.Part{Graph: g})
	if err != nil {
		return err
	}
	dev := host.Open(b.cores)
	defer func() { err = errors.Join(err, dev.Close()) }()
	var mem [ir.NumRegions]ir.DeviceMemory
	for r := range ir.NumRegions {
		if program.Size[r] == 0 {
			continue
		}
		if mem[r], err = dev.Alloc(program.Bytes(r)); err != nil {
			return err
		}
	}
	exe, err := dev.Load(program, mem)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, exe.Close()) }()

	from, to := mem[ir.Input].Host(), mem[ir.Output].Host()
	pool := kernel.NewPool(b.cores)
	defer pool.Close()
	for i := range from {
		from[i] = 0x3f // the floats are 0.747; memory that nobody has written yet is all one page
	}
	const parts = 64
	chunk := len(from) / parts
	part := func(_, i int) { copy(to[i*chunk:(i+1)*chunk], from[i*chunk:]) }
	runtime := ir.Runtime{}
	t, err := b.measure(ctx,
		func() error { return exe.Run(ctx, &runtime) },
		func() error { pool.Run(parts, part); return nil },
	)
	if err != nil {
		return err
	}
	const gigabytes = 2 * 4 * rows * columns / 1e9 // read once, written once
	mode := onCores(b.cores)
	theirs := speed(name, mode, "bandwidth", gigabytes, "GB/s", t[1]).by(copyName)
	b.add(speed(name, mode, "bandwidth", gigabytes, "GB/s", t[0]).below(copyName, theirs.Value), theirs)
	return nil
}

// loader times an epoch of shuffled, prefetched batches.
func loader(ctx context.Context, b *bench) error {
	const images, batch = 8192, 64
	b.log("%s: loader", b.suite)
	x, y, _ := samples(images)
	set, err := data.NewTensorDataset(x, y)
	if err != nil {
		return err
	}
	l, err := data.NewLoader(set, batch, data.Shuffle(1))
	if err != nil {
		return err
	}
	epoch := 0
	t, err := b.measure(ctx, func() error {
		for _, err := range l.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
		}
		epoch++
		return nil
	})
	if err != nil {
		return err
	}
	r := speed("loader", onCores(b.cores), "images", images, "images/s", t[0])
	r.Batch = new(batch)
	b.add(r)
	return nil
}

// random makes n numbers near 0.
func random(n int) []float32 {
	rng := rand.New(rand.NewPCG(3, 4))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}
