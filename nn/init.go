package nn

import (
	"fmt"
	"hash/fnv"
	"math"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-train/tandem/internal/philox"
)

// Init fills a parameter with its first value. The seed differs from parameter to parameter.
type Init func(dst []float32, seed uint64)

// Zeros fills with 0.
func Zeros() Init { return Constant(0) }

// Ones fills with 1.
func Ones() Init { return Constant(1) }

// Constant fills with x.
func Constant(x float32) Init {
	return func(dst []float32, _ uint64) {
		for i := range dst {
			dst[i] = x
		}
	}
}

// Uniform draws from [lo, hi).
func Uniform(lo, hi float64) Init {
	return func(dst []float32, seed uint64) {
		stream := philox.New(seed, 0)
		inParts(dst, func(part []float32, start uint64) {
			stream.FillUniform(part, start)
			for i, u := range part {
				part[i] = float32(lo + (hi-lo)*float64(u))
			}
		})
	}
}

// Normal draws from the normal distribution of that mean and standard deviation.
func Normal(mean, std float64) Init {
	return func(dst []float32, seed uint64) {
		stream := philox.New(seed, 0)
		inParts(dst, func(part []float32, start uint64) {
			stream.FillNormal(part, start)
			for i, z := range part {
				part[i] = float32(mean + std*float64(z))
			}
		})
	}
}

// inParts calls fill for parts of dst, with where they start, which many cores share where there are many: large models have hundreds of
// millions of numbers to draw.
func inParts(dst []float32, fill func(part []float32, start uint64)) {
	const most = 1 << 18
	if len(dst) <= most {
		fill(dst, 0)
		return
	}
	var parts errgroup.Group
	parts.SetLimit(runtime.GOMAXPROCS(0))
	for start := 0; start < len(dst); start += most {
		parts.Go(func() error {
			fill(dst[start:min(start+most, len(dst))], uint64(start))
			return nil
		})
	}
	_ = parts.Wait() // none fails
}

// fanIn is PyTorch's default for weights and biases of linear and convolution layers: uniform in ±1/sqrt(n), n being the
// number of inputs that one output sees.
func fanIn(n int) Init {
	bound := 1 / math.Sqrt(float64(n))
	return Uniform(-bound, bound)
}

// Initialize gives every parameter of m that has no value its first one. The bits depend on the seed and on the parameter's
// name, so that adding a layer leaves the others' as they were.
func Initialize(m Module, seed uint64) error {
	params, err := NamedParameters(m)
	if err != nil {
		return err
	}
	for _, p := range params {
		if err := p.Parameter.check(); err != nil {
			return fmt.Errorf("nn: initialize: parameter %s: %w", p.Name, err)
		}
	}
	for _, p := range params {
		if p.Parameter.value != nil {
			continue
		}
		h := fnv.New64a()
		h.Write([]byte(p.Name))
		x := make([]float32, p.Parameter.Size())
		own := philox.New(seed, h.Sum64())
		p.Parameter.init(x, uint64(own.Uint32At(0))|uint64(own.Uint32At(1))<<32)
		p.Parameter.value = x
	}
	return nil
}
