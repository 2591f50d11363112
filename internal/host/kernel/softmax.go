package kernel

import "math"

// Softmax computes y = e^x / sum(e^x) of one row. The largest x is taken off first, so that nothing overflows. y may
// be x.
func (v *Vector) Softmax(y, x []float32) {
	x = x[:len(y)]
	v.Sub.VS(y, x, v.MaxOf(x))
	v.Exp(y, y)
	v.Mul.VS(y, y, float32(1/v.Sum(y)))
}

// LogSoftmax computes y = x - log(sum(e^x)) of one row. y must not be x.
func (v *Vector) LogSoftmax(y, x []float32) {
	x = x[:len(y)]
	largest := v.MaxOf(x)
	v.Sub.VS(y, x, largest)
	v.Exp(y, y)
	logSum := math.Log(v.Sum(y))
	v.Sub.VS(y, x, largest)
	v.Sub.VS(y, y, float32(logSum))
}

// SoftmaxGrad computes dx = y (dy - sum(y dy)) of one row, from the output y of Softmax. dx may be dy.
func (v *Vector) SoftmaxGrad(dx, y, dy []float32) {
	y, dy = y[:len(dx)], dy[:len(dx)]
	v.Sub.VS(dx, dy, float32(v.Dot(y, dy)))
	v.Mul.VV(dx, dx, y)
}

// LogSoftmaxGrad computes dx = dy - e^y sum(dy) of one row, from the output y of LogSoftmax. dx may be y.
func (v *Vector) LogSoftmaxGrad(dx, y, dy []float32) {
	dy = dy[:len(dx)]
	v.Exp(dx, y)
	v.Fma.VSV(dx, dx, dy, float32(-v.Sum(dy)))
}
