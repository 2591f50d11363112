package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSoftmax(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, r *rand.Rand) {
		for _, n := range append(lengths[1:], 5000) {
			x, dy := normals(r, n), normals(r, n)
			for i := range x {
				x[i] = 20*x[i] + 1000 // would overflow without care
			}
			largest := math.Inf(-1)
			for _, a := range x {
				largest = max(largest, float64(a))
			}
			sum := 0.0
			for _, a := range x {
				sum += math.Exp(float64(a) - largest)
			}
			y, logY, dx, logDX := poison(n), poison(n), poison(n), poison(n)
			v.Softmax(y, x)
			v.LogSoftmax(logY, x)
			v.SoftmaxGrad(dx, y, dy)
			v.LogSoftmaxGrad(logDX, logY, dy)

			p, dot, sumDY, sizeDY := make([]float64, n), 0.0, 0.0, 0.0
			for i, a := range x {
				p[i] = math.Exp(float64(a)-largest) / sum
				dot += p[i] * float64(dy[i])
				sumDY += float64(dy[i])
				sizeDY += math.Abs(float64(dy[i]))
			}
			for i, a := range x {
				lp := float64(a) - largest - math.Log(sum)
				for _, c := range []struct {
					name      string
					got       float32
					want, tol float64
				}{
					{"softmax", y[i], p[i], 1e-6*p[i] + 1e-37},
					{"log softmax", logY[i], lp, 3e-7 * (1 + math.Abs(lp))},
					{"softmax gradient", dx[i], p[i] * (float64(dy[i]) - dot), 4e-6*p[i]*(1+math.Abs(float64(dy[i]))+math.Abs(dot)) + 1e-37},
					// The exponent's rounding is a relative error of e^y.
					{"log softmax gradient", logDX[i], float64(dy[i]) - p[i]*sumDY, 3e-7*math.Abs(float64(dy[i])) + 1e-6*(1+math.Abs(lp))*p[i]*sizeDY + 1e-37},
				} {
					if !(math.Abs(float64(c.got)-c.want) <= c.tol) {
						t.Fatalf("%s of %d, element %d: %v, want %v within %v", c.name, n, i, c.got, c.want, c.tol)
					}
				}
			}
			z := append([]float32(nil), x...)
			v.Softmax(z, z)
			if !sameBits(z, y) {
				t.Fatal("softmax in place differs")
			}
			noAllocs(t, func() {
				v.Softmax(y, x)
				v.LogSoftmax(logY, x)
				v.SoftmaxGrad(dx, y, dy)
				v.LogSoftmaxGrad(logDX, logY, dy)
			})
		}
	})
}
