package ref

import (
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// rows cuts t along its last dimension.
func rows(t tensor) [][]float64 {
	n := t.shape[len(t.shape)-1]
	var out [][]float64
	for r := range t.shape[:len(t.shape)-1].Size() {
		out = append(out, t.x[r*n:(r+1)*n])
	}
	return out
}

// logSoftmax is z[c] - log sum_k exp(z[k]), with the largest z taken out of the exponentials so that none overflows.
func logSoftmax(z []float64) []float64 {
	largest := math.Inf(-1)
	for _, v := range z {
		largest = max(largest, v)
	}
	sum := 0.0
	for _, v := range z {
		sum += math.Exp(v - largest)
	}
	out := make([]float64, len(z))
	for c, v := range z {
		out[c] = v - largest - math.Log(sum)
	}
	return out
}

func softmax(op ir.Softmax, x, out tensor) {
	to := rows(out)
	for r, z := range rows(x) {
		for c, l := range logSoftmax(z) {
			if op.Log {
				to[r][c] = l
			} else {
				to[r][c] = math.Exp(l)
			}
		}
	}
}

// softmaxGrad: y = softmax(x) gives dx = y (dy - sum(y dy)); y = log softmax(x) gives dx = dy - exp(y) sum(dy).
func softmaxGrad(op ir.SoftmaxGrad, y, dy, out tensor) {
	ys, dys := rows(y), rows(dy)
	for r, to := range rows(out) {
		sum := 0.0
		for c := range to {
			if op.Log {
				sum += dys[r][c]
			} else {
				sum += ys[r][c] * dys[r][c]
			}
		}
		for c := range to {
			if op.Log {
				to[c] = dys[r][c] - math.Exp(ys[r][c])*sum
			} else {
				to[c] = ys[r][c] * (dys[r][c] - sum)
			}
		}
	}
}

// crossEntropy: the formula at [ir.CrossEntropy].
func crossEntropy(op ir.CrossEntropy, logits, labels, weights, out tensor) {
	for n, z := range rows(logits) {
		y := int(labels.x[n])
		if y == op.Ignore {
			continue
		}
		logp := logSoftmax(z)
		loss := -(1 - op.Smoothing) * weights.x[y] * logp[y]
		for c, w := range weights.x {
			loss -= op.Smoothing / float64(len(z)) * w * logp[c]
		}
		out.x[n] = loss
	}
}

// crossEntropyGrad: with d log p[c] / d z[k] = [c=k] - p[k], the derivative of crossEntropy's loss by logit k is
//
//	(1-S) w[y] (p[k] - [k=y]) + S/C (p[k] sum_c w[c] - w[k])
func crossEntropyGrad(op ir.CrossEntropyGrad, logits, labels, weights, dloss, out tensor) {
	total := 0.0
	for _, w := range weights.x {
		total += w
	}
	to := rows(out)
	for n, z := range rows(logits) {
		y := int(labels.x[n])
		if y == op.Ignore {
			continue
		}
		for k, l := range logSoftmax(z) {
			p := math.Exp(l)
			hit := 0.0
			if k == y {
				hit = 1
			}
			d := (1-op.Smoothing)*weights.x[y]*(p-hit) + op.Smoothing/float64(len(z))*(p*total-weights.x[k])
			to[n][k] = d * dloss.x[n]
		}
	}
}
