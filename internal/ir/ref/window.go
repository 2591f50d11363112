package ref

import (
	"math"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// inNCHW calls f with tensors in the order [N,C,H,W], whichever the window's is.
func inNCHW(w ir.Window, args []tensor, out tensor, f func(args []tensor, out tensor)) {
	if !w.ChannelsLast {
		f(args, out)
		return
	}
	first := func(t tensor) tensor {
		s := w.ToNCHW([4]int(t.shape))
		return tensor{s[:], make([]float64, len(t.x))}
	}
	moved := make([]tensor, len(args))
	for i, a := range args {
		moved[i] = first(a)
		transpose(ir.Transpose{Perm: []int{0, 3, 1, 2}}, a, moved[i])
	}
	result := first(out)
	f(moved, result)
	transpose(ir.Transpose{Perm: []int{0, 2, 3, 1}}, result, out)
}

// taps calls f for every product that a convolution sums up: y[n,o,i,j] += x[n,c,h,w] * k[o,c',p,q]
// with h = i*stride + p*dilation - padding (w alike) inside the input, and c the c'-th channel of o's group.
func taps(win ir.Window, x, k, y tensor, f func(x, k, y *float64)) {
	perGroupIn, perGroupOut := k.shape[1], k.shape[0]/win.Groups
	each(y.shape, func(at []int) {
		n, o, i, j := at[0], at[1], at[2], at[3]
		for c := range perGroupIn {
			for p := range win.Kernel[0] {
				for q := range win.Kernel[1] {
					h := i*win.Stride[0] + p*win.Dilation[0] - win.Padding[0]
					w := j*win.Stride[1] + q*win.Dilation[1] - win.Padding[1]
					if h >= 0 && h < x.shape[2] && w >= 0 && w < x.shape[3] {
						channel := o/perGroupOut*perGroupIn + c
						f(x.at(n, channel, h, w), k.at(o, c, p, q), y.at(n, o, i, j))
					}
				}
			}
		}
	})
}

func conv2d(win ir.Window, x, k, out tensor) {
	taps(win, x, k, out, func(x, k, y *float64) { *y += *x * *k })
}

func conv2dGradX(win ir.Window, k, dy, out tensor) {
	taps(win, out, k, dy, func(dx, k, dy *float64) { *dx += *k * *dy })
}

func conv2dGradW(win ir.Window, x, dy, out tensor) {
	taps(win, x, out, dy, func(x, dk, dy *float64) { *dk += *x * *dy })
}

// span is the part of the input, along dimension d (0 height, 1 width), under the window of output i, without padding.
func span(mode ir.PoolMode, win ir.Window, d, i, in, out int) []int {
	var at []int
	if mode == ir.AdaptiveAvgPool {
		for h := i * in / out; h < ((i+1)*in+out-1)/out; h++ {
			at = append(at, h)
		}
		return at
	}
	for p := range win.Kernel[d] {
		if h := i*win.Stride[d] + p*win.Dilation[d] - win.Padding[d]; h >= 0 && h < in {
			at = append(at, h)
		}
	}
	return at
}

// divisor is what an average pooling divides the sum of a window by.
func divisor(mode ir.PoolMode, win ir.Window, elements int) float64 {
	if mode == ir.AvgPool {
		return float64(win.Kernel[0] * win.Kernel[1])
	}
	return float64(elements)
}

// largest is where in the window the first largest element is, or its first NaN; ok is false for a window over padding only.
func largest(x tensor, n, c int, hs, ws []int) (h, w int, ok bool) {
	best := math.Inf(-1)
	for _, i := range hs {
		for _, j := range ws {
			v := *x.at(n, c, i, j)
			if !ok || v > best || math.IsNaN(v) && !math.IsNaN(best) {
				best, h, w, ok = v, i, j, true
			}
		}
	}
	return h, w, ok
}

func pool2d(op ir.Pool2d, x, out tensor) {
	each(out.shape, func(at []int) {
		n, c, i, j := at[0], at[1], at[2], at[3]
		hs := span(op.Mode, op.Pool, 0, i, x.shape[2], out.shape[2])
		ws := span(op.Mode, op.Pool, 1, j, x.shape[3], out.shape[3])
		if op.Mode == ir.MaxPool {
			*out.at(at...) = math.Inf(-1)
			if h, w, ok := largest(x, n, c, hs, ws); ok {
				*out.at(at...) = *x.at(n, c, h, w)
			}
			return
		}
		sum := 0.0
		for _, h := range hs {
			for _, w := range ws {
				sum += *x.at(n, c, h, w)
			}
		}
		*out.at(at...) = sum / divisor(op.Mode, op.Pool, len(hs)*len(ws))
	})
}

// poolPlaces: x and out have their channels last.
func poolPlaces(op ir.PoolPlaces, x, out tensor) {
	first := tensor{ir.Of(x.shape[0], x.shape[3], x.shape[1], x.shape[2]), make([]float64, len(x.x))}
	transpose(ir.Transpose{Perm: []int{0, 3, 1, 2}}, x, first)
	each(out.shape, func(at []int) {
		n, i, j := at[0], at[1], at[2]
		hs := span(ir.MaxPool, op.Pool, 0, i, x.shape[1], out.shape[1])
		ws := span(ir.MaxPool, op.Pool, 1, j, x.shape[2], out.shape[2])
		word := uint32(0)
		for k := range 4 {
			h, w, _ := largest(first, n, 4*at[3]+k, hs, ws)
			word |= uint32(slices.Index(hs, h)*len(ws)+slices.Index(ws, w)) << (8 * k)
		}
		*out.at(at...) = float64(int32(word))
	})
}

// placedGrad: all have their channels last.
func placedGrad(op ir.Pool2dGrad, places, dy, out tensor) {
	each(dy.shape, func(at []int) {
		n, i, j, c := at[0], at[1], at[2], at[3]
		place := int(uint32(int32(*places.at(n, i, j, c/4)))>>(c%4*8)) & 0xff
		h := i*op.Pool.Stride[0] + place/op.Pool.Kernel[1]*op.Pool.Dilation[0]
		w := j*op.Pool.Stride[1] + place%op.Pool.Kernel[1]*op.Pool.Dilation[1]
		*out.at(n, h, w, c) += *dy.at(at...)
	})
}

// pool2dGrad: args are dy, and before it x for MaxPool.
func pool2dGrad(op ir.Pool2dGrad, args []tensor, out tensor) {
	dy := args[len(args)-1]
	each(dy.shape, func(at []int) {
		n, c, i, j := at[0], at[1], at[2], at[3]
		hs := span(op.Mode, op.Pool, 0, i, out.shape[2], dy.shape[2])
		ws := span(op.Mode, op.Pool, 1, j, out.shape[3], dy.shape[3])
		if op.Mode == ir.MaxPool {
			if h, w, ok := largest(args[0], n, c, hs, ws); ok {
				*out.at(n, c, h, w) += *dy.at(at...)
			}
			return
		}
		for _, h := range hs {
			for _, w := range ws {
				*out.at(n, c, h, w) += *dy.at(at...) / divisor(op.Mode, op.Pool, len(hs)*len(ws))
			}
		}
	})
}
