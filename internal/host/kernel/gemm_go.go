package kernel

import "unsafe"

// The plain Go micro-kernel: its tile fits in the sixteen registers of most CPUs, more or less.
const (
	goMR = 4
	goNR = 4
)

func goGemm(k int, a, b, c *float32, ldc, rows, flags int, rowBias, colBias *float32) {
	var acc [goMR][goNR]float32
	pa, pb := unsafe.Slice(a, k*goMR), unsafe.Slice(b, k*goNR)
	for i := 0; i < goMR; i += 2 { // two rows at a time: eight sums
		var s00, s01, s02, s03, s10, s11, s12, s13 float32
		for p := range k {
			x := pa[p*goMR+i : p*goMR+i+2 : p*goMR+i+2]
			y := pb[p*goNR : p*goNR+4 : p*goNR+4]
			s00 += x[0] * y[0]
			s01 += x[0] * y[1]
			s02 += x[0] * y[2]
			s03 += x[0] * y[3]
			s10 += x[1] * y[0]
			s11 += x[1] * y[1]
			s12 += x[1] * y[2]
			s13 += x[1] * y[3]
		}
		acc[i] = [goNR]float32{s00, s01, s02, s03}
		acc[i+1] = [goNR]float32{s10, s11, s12, s13}
	}
	for i := range rows {
		row := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(c), 4*i*ldc)), goNR)
		for j, x := range acc[i] {
			if flags&flagAdd != 0 {
				x += row[j]
			}
			if rowBias != nil {
				x += unsafe.Slice(rowBias, rows)[i]
			}
			if colBias != nil {
				x += unsafe.Slice(colBias, goNR)[j]
			}
			if flags&flagReLU != 0 {
				x = max(x, 0)
			}
			row[j] = x
		}
	}
}

const goPeakFlops = 8 * 2

func goPeak(n int) {
	var a, b, c, d, e, f, g, h float32
	x, y := float32(0.5), float32(0.25)
	for range n {
		a, b, c, d = a*x+y, b*x+y, c*x+y, d*x+y
		e, f, g, h = e*x+y, f*x+y, g*x+y, h*x+y
	}
	if a+b+c+d+e+f+g+h < 0 { // it never is, but the compiler can't know that and drop the loop
		panic("kernel: a sum of positive numbers is negative")
	}
}
