package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"gorgonia.org/tensor"

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
		{"recompute", "steps of 24 layers 512-512 with half of their activations, beside all of them, batches of 512", func(ctx context.Context, b *bench) error {
			return recompute(ctx, b, dp.Host, 512, 512, onCores(b.cores))
		}},
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
	mode := onCores(b.cores)
	took := func(t timing) row { return stepTime(n.name, batch, mode, t) }
	layers, err := newTrainer(n.layers(), nn.CrossEntropy())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layers.Close()) }()
	entrants := []entrant{{run: stepper(ctx, layers, x, y), row: took}}
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
		entrants = append(entrants,
			entrant{run: stepper(ctx, natives, x, oneHot), row: func(t timing) row {
				return stepTime(n.name, batch, mode+", gorgonia's graph", t)
			}},
			entrant{peer: gorgoniaPeer, row: took, run: calls(func() error { _, err := peer.step(); return err })},
		)
	}
	if b.torch != nil {
		entrants = append(entrants, entrant{peer: torchPeer, row: took, run: b.torch.contender(n.name, batch, b.cores)})
	}
	reached, err := b.compare(ctx, entrants...)
	if err != nil {
		return err
	}
	images := speed(n.name, mode, "images", float64(batch), "images/s", timing{reached[0].Value / 1e3, reached[0].spread})
	images.Batch = &batch
	b.add(images)
	return nil
}

// newTrainer prepares training on the host.
func newTrainer(m nn.Module, loss nn.Loss) (*dp.DataParallel, error) {
	return dp.New(m, loss, nn.SGD(learningRate), dp.DeviceIDs(dp.Host), dp.Seed(1))
}

func stepper(ctx context.Context, t *dp.DataParallel, x, y tensor.Tensor) contender {
	return calls(func() error {
		_, err := t.Step(ctx, x, y)
		return err
	})
}

// coreCounts are the numbers of cores that kernels are measured on.
func (b *bench) coreCounts() []int {
	if b.cores == 1 {
		return []int{1}
	}
	return []int{1, b.cores}
}

// matmul times products of square matrices of some sizes.
func matmul(ctx context.Context, b *bench, sizes ...int) error {
	for _, n := range sizes {
		if err := product(ctx, b, n); err != nil {
			return fmt.Errorf("n = %d: %w", n, err)
		}
	}
	return nil
}

// product times an n x n product on one core and on all, against the peak of as many cores. All take turns, so that scaling is a ratio to
// trust, too.
func product(ctx context.Context, b *bench, n int) error {
	name := fmt.Sprintf("matmul-%d", n)
	b.log("%s: %s", b.suite, name)
	x, y, z := kernel.RowMajor(random(n*n), n, n), kernel.RowMajor(random(n*n), n, n), kernel.RowMajor(random(n*n), n, n)
	var ours, peers []entrant
	for _, cores := range b.coreCounts() {
		pool := kernel.NewPool(cores)
		defer pool.Close()
		g := kernel.NewGemm(pool, kernel.GemmShape{M: n, N: n, K: n})
		rate := func(t timing) row {
			return speed(name, onCores(cores), "speed", 2*float64(n)*float64(n)*float64(n)/1e9, "GFLOP/s", t)
		}
		ours = append(ours, entrant{row: rate, run: calls(func() error { g.Run(z, x, y, kernel.Epilogue{}); return nil })})
		peers = append(peers, fmaPeak(name, pool))
		if b.torch != nil {
			peers = append(peers, entrant{peer: torchPeer, row: rate, run: b.torch.contender("matmul", n, cores)})
		}
	}
	reached, err := b.compare(ctx, append(ours, peers...)...)
	if err != nil {
		return err
	}
	if len(ours) == 2 {
		b.add(row{Workload: name, Mode: reached[1].Mode, Metric: "scaling", Value: reached[1].Value / reached[0].Value, Unit: "times 1 core"})
	}
	return nil
}

// fmaPeak is multiply-adds in registers on all threads of a pool.
func fmaPeak(workload string, pool *kernel.Pool) entrant {
	const flopOfPart = 10_000_000 // about a hundred microseconds: long beside handing it out
	ran := make([]int, 4*pool.Threads())
	part := func(_, i int) { ran[i] = kernel.PeakFMA(pool.Level(), flopOfPart) }
	return entrant{
		peer: "fma peak", limit: true,
		run: calls(func() error { pool.Run(len(ran), part); return nil }),
		row: func(t timing) row {
			flop := 0
			for _, f := range ran {
				flop += f
			}
			return speed(workload, onCores(pool.Threads()), "speed", float64(flop)/1e9, "GFLOP/s", t)
		},
	}
}

// elementwise times a fused loop, relu(x + bias), whose operands lie in memory, against copying as much.
func elementwise(ctx context.Context, b *bench) (err error) {
	const rows, columns = 1 << 16, 256 // 64 MiB: more than caches hold
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
	program, err := ir.Compile(name, size, ir.Target{}, ir.Part{Graph: g})
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
	rate := func(t timing) row {
		return speed(name, onCores(b.cores), "bandwidth", 2*4*rows*columns/1e9, "GB/s", t) // read once, written once
	}
	_, err = b.compare(ctx,
		entrant{row: rate, run: calls(func() error { return exe.Run(ctx, &runtime) })},
		entrant{row: rate, run: calls(func() error { pool.Run(parts, part); return nil }), peer: "memory copy", limit: true},
	)
	return err
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
	_, err = b.compare(ctx, entrant{
		run: calls(func() error {
			epoch++
			for _, err := range l.Epoch(ctx, epoch) {
				if err != nil {
					return err
				}
			}
			return nil
		}),
		row: func(t timing) row {
			r := speed("loader", onCores(b.cores), "images", images, "images/s", t)
			r.Batch = new(batch)
			return r
		},
	})
	return err
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
