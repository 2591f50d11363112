package host

import (
	"math"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// rowwise is a function of ranges of rows.
type rowwise struct {
	shared
	rows    int
	scratch []scratch // a thread's
	do      func(lo, hi int, scratch []float32)
}

// rowwise makes a step of do, which costs work in all and wants scratch of that many float32.
func (b *builder) rowwise(rows, work, wants int, do func(lo, hi int, scratch []float32)) *rowwise {
	s := &rowwise{rows: rows, do: do}
	s.shared = shared{b.cut(rows, work), s.part}
	b.need(wants, func(all []scratch) { s.scratch = all })
	return s
}

func (s *rowwise) part(worker, part int) {
	lo, hi := share(s.rows, part, s.parts)
	s.do(lo, hi, s.scratch[worker].f)
}

func lastDim(s ir.Shape) (rows, cols int) {
	cols = s[len(s)-1]
	if cols == 0 {
		return 0, 0
	}
	return s.Size() / cols, cols
}

// perElement is about what an exponential costs, in the units of grain.
const perElement = 8

func (b *builder) softmax(s *ir.Step, op ir.Softmax) (step, error) {
	m, err := b.all(s.In[0], s.Out[0])
	if err != nil {
		return nil, err
	}
	x, y := m[0], m[1]
	rows, cols := lastDim(s.Out[0].Shape)
	f := b.kernels.Softmax
	if op.Log {
		f = b.kernels.LogSoftmax
	}
	return b.rowwise(rows, len(y)*perElement, 0, func(lo, hi int, _ []float32) {
		for i := lo * cols; i < hi*cols; i += cols {
			f(y[i:i+cols], x[i:i+cols])
		}
	}), nil
}

func (b *builder) softmaxGrad(s *ir.Step, op ir.SoftmaxGrad) (step, error) {
	m, err := b.all(s.In[0], s.In[1], s.Out[0])
	if err != nil {
		return nil, err
	}
	y, dy, dx := m[0], m[1], m[2]
	rows, cols := lastDim(s.Out[0].Shape)
	f := b.kernels.SoftmaxGrad
	if op.Log {
		f = b.kernels.LogSoftmaxGrad
	}
	return b.rowwise(rows, len(y)*perElement, 0, func(lo, hi int, _ []float32) {
		for i := lo * cols; i < hi*cols; i += cols {
			f(dx[i:i+cols], y[i:i+cols], dy[i:i+cols])
		}
	}), nil
}

// loss is what CrossEntropy and its gradient share.
type loss struct {
	kernels         *kernel.Vector
	logits, weights []float32
	labels          []int32
	classes         int
	hit             float64 // 1 - smoothing
	spread          float64 // smoothing / classes
	ignore          int32
}

func (b *builder) loss(s *ir.Step, smoothing float64, ignore int) (*loss, error) {
	m, err := b.all(s.In[0], s.In[2])
	if err != nil {
		return nil, err
	}
	labels, err := b.contiguousInts(s.In[1])
	if err != nil {
		return nil, err
	}
	classes := s.In[0].Shape[1]
	return &loss{b.kernels, m[0], m[1], labels, classes, 1 - smoothing, smoothing / float64(max(1, classes)), int32(ignore)}, nil
}

// checked makes do fail on a label that is no class, where a caller has left out the program's checks.
func (l *loss) checked(do *rowwise) step {
	return &indexed{do, ir.CheckIndex{Bound: l.classes, Ignore: int(l.ignore), What: "label"}, l.labels}
}

// logNorm returns log sum_c exp(z[c]) of row n, with t, as long as the row, left at exp(z - max) and their sum. That is taken without the label's, to
// which it is added in float64: next to 1, what is left for the others of a row that is sure would be lost.
func (l *loss) logNorm(n int, t []float32) (norm, sum float64) {
	z := l.logits[n*l.classes : (n+1)*l.classes]
	largest := l.kernels.MaxOf(z)
	l.kernels.Sub.VS(t, z, largest)
	l.kernels.Exp(t, t)
	own := &t[l.labels[n]]
	p := *own
	*own = 0
	sum = float64(p) + l.kernels.Sum(t)
	*own = p
	return float64(largest) + math.Log(sum), sum
}

// of is the loss of row n, which is not ignored, from what logNorm gave.
func (l *loss) of(n int, norm float64) float32 {
	z, y := l.logits[n*l.classes:(n+1)*l.classes], l.labels[n]
	loss := l.hit * float64(l.weights[y]) * (norm - float64(z[y]))
	if l.spread != 0 {
		sum := 0.0
		for c, w := range l.weights {
			sum += float64(w) * (norm - float64(z[c]))
		}
		loss += l.spread * sum
	}
	return float32(loss)
}

func (b *builder) crossEntropy(s *ir.Step, op ir.CrossEntropy) (step, error) {
	l, err := b.loss(s, op.Smoothing, op.Ignore)
	if err != nil {
		return nil, err
	}
	out, err := b.contiguous(s.Out[0])
	if err != nil {
		return nil, err
	}
	do := b.rowwise(len(out), len(l.logits)*perElement, l.classes, func(lo, hi int, t []float32) {
		t = t[:l.classes]
		for n := lo; n < hi; n++ {
			if l.labels[n] == l.ignore {
				out[n] = 0
				continue
			}
			norm, _ := l.logNorm(n, t)
			out[n] = l.of(n, norm)
		}
	})
	return l.checked(do), nil
}

// crossEntropyGrad: with p = softmax(z), logit k of a row has the gradient, times the row's dloss,
//
//	p[k] ((1-S) w[y] + S/C sum_c w[c]) - (1-S) w[y] [k=y] - S/C w[k]
//
// The losses themselves take no more than what p takes anyway.
func (b *builder) crossEntropyGrad(s *ir.Step, op ir.CrossEntropyGrad) (step, error) {
	l, err := b.loss(s, op.Smoothing, op.Ignore)
	if err != nil {
		return nil, err
	}
	m, err := b.all(s.In[3], s.Out[0])
	if err != nil {
		return nil, err
	}
	dloss, dx := m[0], m[1]
	var losses []float32 // if they are wanted
	if s.Epilogue.Losses {
		if losses, err = b.contiguous(s.Out[1]); err != nil {
			return nil, err
		}
	}
	do := b.rowwise(len(dloss), len(dx)*perElement, 0, func(lo, hi int, _ []float32) {
		total := 0.0
		if l.spread != 0 {
			for _, w := range l.weights {
				total += float64(w)
			}
		}
		for n := lo; n < hi; n++ {
			d := dx[n*l.classes : (n+1)*l.classes]
			y, g := l.labels[n], float64(dloss[n])
			if y == l.ignore {
				clear(d)
				if losses != nil {
					losses[n] = 0
				}
				continue
			}
			norm, sum := l.logNorm(n, d)
			if losses != nil {
				losses[n] = l.of(n, norm)
			}
			hit := l.hit * float64(l.weights[y])
			p := d[y]
			l.kernels.Mul.VS(d, d, float32(g*(hit+l.spread*total)/sum))
			if l.spread != 0 {
				k := float32(g * l.spread)
				for c, w := range l.weights {
					d[c] -= k * w
				}
			}
			// The label's own element is a difference of near numbers: take it at full precision.
			q := float64(p) / sum
			d[y] = float32(g * (q*(hit+l.spread*total) - (hit + l.spread*float64(l.weights[y]))))
		}
	})
	return l.checked(do), nil
}

func (b *builder) argMax(s *ir.Step, op ir.ArgMax) (step, error) {
	x, err := b.contiguous(s.In[0])
	if err != nil {
		return nil, err
	}
	out, err := b.contiguousInts(s.Out[0])
	if err != nil {
		return nil, err
	}
	shape := s.In[0].Shape
	n, inner := shape[op.Axis], shape[op.Axis+1:].Size()
	return b.rowwise(len(out), len(x)*2, 0, func(lo, hi int, _ []float32) {
		for i := lo; i < hi; i++ {
			at := i/inner*n*inner + i%inner
			best, largest := 0, float32(math.Inf(-1))
			for k := range n {
				if v := x[at]; v > largest {
					best, largest = k, v
				}
				at += inner
			}
			out[i] = int32(best)
		}
	}), nil
}
