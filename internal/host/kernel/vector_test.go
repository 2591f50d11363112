package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// lengths covers whole vectors, unrolled ones and every tail.
var lengths = []int{0, 1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 25, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 1000}

// awkward returns n numbers: mostly normal ones, with zeros of both signs, infinities, NaN, subnormals and extremes between.
func awkward(r *rand.Rand, n int) []float32 {
	special := []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
		1e-40, -1e-45, math.MaxFloat32, -math.MaxFloat32, 1, -1, 0.5, 88.7, 88.8, -87.4, -103.9, -104.1, 1e-20}
	x := normals(r, n)
	for i := range x {
		switch r.IntN(4) {
		case 0:
			x[i] = special[r.IntN(len(special))]
		case 1:
			x[i] *= 30
		}
	}
	return x
}

// near reports whether got is want within a relative tolerance (and one subnormal step); NaN equals NaN.
func near(got float32, want, tol float64) bool { return nearer(got, want, tol, 0x1p-149) }

// nearer is near with an absolute tolerance.
func nearer(got float32, want, tol, abs float64) bool {
	w := float32(want)
	switch {
	case w != w:
		return got != got
	case got == w:
		return true
	case math.IsInf(want, 0) || math.IsInf(float64(got), 0) || math.IsInf(float64(w), 0):
		// At the very edge of the range a rounding error decides.
		return math.Abs(want) > math.MaxFloat32*(1-tol) && math.Abs(float64(got)) > math.MaxFloat32*(1-tol) && (got > 0) == (want > 0)
	}
	return math.Abs(float64(got)-want) <= tol*math.Abs(want)+abs
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

const oneRounding = 0x1p-23 // a little over half a unit in the last place

type binaryCase struct {
	name string
	get  func(v *Vector) Binary
	f    func(a, b float64) float64
}

var binaryCases = []binaryCase{
	{"add", func(v *Vector) Binary { return v.Add }, func(a, b float64) float64 { return a + b }},
	{"sub", func(v *Vector) Binary { return v.Sub }, func(a, b float64) float64 { return a - b }},
	{"mul", func(v *Vector) Binary { return v.Mul }, func(a, b float64) float64 { return a * b }},
	{"div", func(v *Vector) Binary { return v.Div }, func(a, b float64) float64 { return a / b }},
	{"max", func(v *Vector) Binary { return v.Max }, func(a, b float64) float64 { return max(a, b) }},
	{"min", func(v *Vector) Binary { return v.Min }, func(a, b float64) float64 { return min(a, b) }},
	{"gt", func(v *Vector) Binary { return v.Gt }, func(a, b float64) float64 { return b2f(a > b) }},
	{"ge", func(v *Vector) Binary { return v.Ge }, func(a, b float64) float64 { return b2f(a >= b) }},
	{"lt", func(v *Vector) Binary { return v.Lt }, func(a, b float64) float64 { return b2f(a < b) }},
	{"le", func(v *Vector) Binary { return v.Le }, func(a, b float64) float64 { return b2f(a <= b) }},
	{"eq", func(v *Vector) Binary { return v.Eq }, func(a, b float64) float64 { return b2f(a == b) }},
	{"ne", func(v *Vector) Binary { return v.Ne }, func(a, b float64) float64 { return b2f(a != b) }},
	{"pow", func(v *Vector) Binary { return v.Pow }, math.Pow},
}

// expect compares dst[i] with want(i).
func expect(t *testing.T, name string, dst []float32, tol float64, want func(i int) float64) {
	t.Helper()
	for i, got := range dst {
		if w := want(i); !near(got, w, tol) {
			t.Fatalf("%s: element %d of %d is %v, want %v", name, i, len(dst), got, w)
		}
	}
}

func forLevels(t *testing.T, f func(t *testing.T, v *Vector, r *rand.Rand)) {
	for _, l := range Levels() {
		t.Run(l.String(), func(t *testing.T) { f(t, Vectors(l), newRand(t)) })
	}
}

func TestBinary(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, r *rand.Rand) {
		for _, c := range binaryCases {
			k := c.get(v)
			for _, n := range lengths {
				a, b := awkward(r, n), awkward(r, n+3)
				for i := range a {
					if r.IntN(4) == 0 {
						a[i] = b[i]
					}
				}
				s := awkward(r, 1)[0]
				dst := poison(n + 1)
				whole := func(name string) {
					t.Helper()
					if dst[n] == dst[n] {
						t.Fatalf("%s %s writes past the end of %d elements", c.name, name, n)
					}
				}
				k.VV(dst[:n], a, b)
				expect(t, c.name+" VV", dst[:n], oneRounding, func(i int) float64 { return c.f(float64(a[i]), float64(b[i])) })
				whole("VV")
				k.VS(dst[:n], a, s)
				expect(t, fmt.Sprint(c.name, " VS ", s), dst[:n], oneRounding, func(i int) float64 { return c.f(float64(a[i]), float64(s)) })
				whole("VS")
				k.SV(dst[:n], b, s)
				expect(t, fmt.Sprint(c.name, " SV ", s), dst[:n], oneRounding, func(i int) float64 { return c.f(float64(s), float64(b[i])) })
				whole("SV")

				same := append([]float32(nil), a...) // dst is an operand
				k.VV(same, same, b)
				expect(t, c.name+" in place", same, oneRounding, func(i int) float64 { return c.f(float64(a[i]), float64(b[i])) })
			}
		}
	})
}

var unaryCases = []struct {
	name string
	get  func(v *Vector) Unary
	f    func(x float64) float64
	tol  float64
}{
	{"neg", func(v *Vector) Unary { return v.Neg }, func(x float64) float64 { return -x }, 0},
	{"abs", func(v *Vector) Unary { return v.Abs }, math.Abs, 0},
	{"sign", func(v *Vector) Unary { return v.Sign }, func(x float64) float64 {
		if x == 0 || x != x {
			return x
		}
		return math.Copysign(1, x)
	}, 0},
	{"sqrt", func(v *Vector) Unary { return v.Sqrt }, math.Sqrt, oneRounding},
	{"rsqrt", func(v *Vector) Unary { return v.Rsqrt }, func(x float64) float64 { return 1 / math.Sqrt(x) }, 2 * oneRounding},
	{"recip", func(v *Vector) Unary { return v.Recip }, func(x float64) float64 { return 1 / x }, oneRounding},
	{"square", func(v *Vector) Unary { return v.Square }, func(x float64) float64 { return x * x }, oneRounding},
	{"relu", func(v *Vector) Unary { return v.Relu }, func(x float64) float64 { return max(x, 0) }, 0},
	{"floor", func(v *Vector) Unary { return v.Floor }, math.Floor, 0},
	{"ceil", func(v *Vector) Unary { return v.Ceil }, math.Ceil, 0},
	{"exp", func(v *Vector) Unary { return v.Exp }, math.Exp, 4e-7},
	{"expm1", func(v *Vector) Unary { return v.Expm1 }, math.Expm1, 4e-7},
	{"log", func(v *Vector) Unary { return v.Log }, math.Log, 4e-7},
	{"log1p", func(v *Vector) Unary { return v.Log1p }, math.Log1p, oneRounding},
	{"sin", func(v *Vector) Unary { return v.Sin }, math.Sin, oneRounding},
	{"cos", func(v *Vector) Unary { return v.Cos }, math.Cos, oneRounding},
	{"tanh", func(v *Vector) Unary { return v.Tanh }, math.Tanh, 4e-7},
	{"sigmoid", func(v *Vector) Unary { return v.Sigmoid }, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, 4e-7},
	{"softplus", func(v *Vector) Unary { return v.Softplus }, func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }, oneRounding},
	{"erf", func(v *Vector) Unary { return v.Erf }, math.Erf, 4e-7},
}

// smallest is what functions may be off by absolutely: Sigmoid is 0 below it.
const smallest = 3e-39

func TestUnary(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, r *rand.Rand) {
		for _, c := range unaryCases {
			k, f := c.get(v), c.f
			for _, n := range lengths {
				a, dst := awkward(r, n), poison(n+1)
				k(dst[:n], a)
				for i, x := range a {
					if want := f(float64(x)); !nearer(dst[i], want, c.tol, smallest) {
						t.Fatalf("%s(%v) = %v, want %v", c.name, x, dst[i], want)
					}
				}
				if dst[n] == dst[n] {
					t.Fatalf("%s writes past the end of %d elements", c.name, n)
				}
				k(a, a)
				if !sameBits(a, dst[:n]) {
					t.Fatalf("%s in place differs", c.name)
				}
			}
		}
	})
}

// Dense sweeps of the range in which each function does something.
func TestTranscendentalSweep(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, r *rand.Rand) {
		for _, c := range unaryCases[10:] {
			x, y := make([]float32, 1<<16), poison(1<<16)
			for i := range x {
				e := math.Exp2(-30 + 37*r.Float64()) // magnitudes up to 128, evenly over the exponents
				if r.IntN(2) == 0 && c.name != "log" {
					e = -e
				}
				x[i] = float32(e)
			}
			c.get(v)(y, x)
			worst, at := 0.0, float32(0)
			for i, got := range y {
				w := c.f(float64(x[i]))
				if !nearer(got, w, c.tol, smallest) {
					t.Fatalf("%s(%v) = %v, want %v within %v", c.name, x[i], got, w, c.tol)
				}
				if rel := math.Abs(float64(got)-w) / math.Abs(w); rel > worst && math.Abs(w) > 1e-37 && math.Abs(w) < math.MaxFloat32 {
					worst, at = rel, x[i]
				}
			}
			t.Logf("%-8s largest relative error %.2g, at %v", c.name, worst, at)
		}
	})
}

func TestFmaAndWhere(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, r *rand.Rand) {
		for _, n := range lengths {
			a, b, c := normals(r, n), normals(r, n+1), normals(r, n+2)
			s, u := normals(r, 1)[0], normals(r, 1)[0]
			for i := range c {
				if r.IntN(2) == 0 {
					c[i] = 0
				}
			}
			if n > 0 {
				c[r.IntN(n)] = float32(math.NaN())
			}
			run := func(name string, want func(i int) (x, size float64), f func(dst []float32)) {
				t.Helper()
				dst := poison(n + 1)
				f(dst[:n])
				for i, got := range dst[:n] {
					w, size := want(i)
					if !near(got, w, 0) && !(math.Abs(float64(got)-w) <= 2*oneRounding*size) {
						t.Fatalf("%s: element %d of %d is %v, want %v", name, i, n, got, w)
					}
				}
				if dst[n] == dst[n] {
					t.Fatalf("%s writes past the end", name)
				}
			}
			fma := func(a, b, c float32) (x, size float64) {
				p := float64(a) * float64(b)
				return p + float64(c), math.Abs(p) + math.Abs(float64(c))
			}
			run("fma VVV", func(i int) (x, size float64) { return fma(a[i], b[i], c[i]) }, func(d []float32) { v.Fma.VVV(d, a, b, c) })
			run("fma VSV", func(i int) (x, size float64) { return fma(a[i], s, c[i]) }, func(d []float32) { v.Fma.VSV(d, a, c, s) })
			run("fma VVS", func(i int) (x, size float64) { return fma(a[i], b[i], s) }, func(d []float32) { v.Fma.VVS(d, a, b, s) })
			run("fma VSS", func(i int) (x, size float64) { return fma(a[i], s, u) }, func(d []float32) { v.Fma.VSS(d, a, s, u) })
			pick := func(c, a, b float32) (x, size float64) {
				if c == 0 {
					return float64(b), 0
				}
				return float64(a), 0
			}
			run("where VV", func(i int) (x, size float64) { return pick(c[i], a[i], b[i]) }, func(d []float32) { v.Where.VV(d, c, a, b) })
			run("where VS", func(i int) (x, size float64) { return pick(c[i], a[i], s) }, func(d []float32) { v.Where.VS(d, c, a, s) })
			run("where SV", func(i int) (x, size float64) { return pick(c[i], s, b[i]) }, func(d []float32) { v.Where.SV(d, c, b, s) })
			run("where SS", func(i int) (x, size float64) { return pick(c[i], s, u) }, func(d []float32) { v.Where.SS(d, c, s, u) })
			run("fill", func(int) (x, size float64) { return float64(s), 0 }, func(d []float32) { v.Fill(d, s) })
		}
	})
}

func TestReductions(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, r *rand.Rand) {
		for _, n := range append(lengths, reduceBlock-1, reduceBlock, 3*reduceBlock+77) {
			a, b := normals(r, n), normals(r, n+1)
			var sum, abs, squares, dot, absDot float64
			largest, least := math.Inf(-1), math.Inf(1)
			for i, x := range a {
				y := float64(x)
				sum, abs, squares = sum+y, abs+math.Abs(y), squares+y*y
				dot, absDot = dot+y*float64(b[i]), absDot+math.Abs(y*float64(b[i]))
				largest, least = max(largest, y), min(least, y)
			}
			// At most 2048/8 additions follow each other in float32, and their errors are random: 32 roundings.
			const tol = 32 * 0x1p-24
			for _, c := range []struct {
				name            string
				got, want, size float64
			}{
				{"sum", v.Sum(a), sum, abs},
				{"sum of squares", v.SumSquares(a), squares, squares},
				{"dot", v.Dot(a, b), dot, absDot},
			} {
				if !(math.Abs(c.got-c.want) <= tol*c.size) {
					t.Fatalf("%s of %d: %v, want %v", c.name, n, c.got, c.want)
				}
			}
			if got := v.MaxOf(a); float64(got) != largest {
				t.Fatalf("max of %d: %v, want %v", n, got, largest)
			}
			if got := v.MinOf(a); float64(got) != least {
				t.Fatalf("min of %d: %v, want %v", n, got, least)
			}
			if n > 0 {
				a[r.IntN(n)] = float32(math.NaN())
				if got := v.MaxOf(a); got == got {
					t.Fatalf("max of %d with a NaN: %v", n, got)
				}
				if got := v.MinOf(a); got == got {
					t.Fatalf("min of %d with a NaN: %v", n, got)
				}
				if got := v.Sum(a); got == got {
					t.Fatalf("sum of %d with a NaN: %v", n, got)
				}
			}
		}
	})
}

func TestShortOperandPanics(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, _ *rand.Rand) {
		defer func() {
			if recover() == nil {
				t.Error("an operand shorter than dst was accepted")
			}
		}()
		v.Add.VV(make([]float32, 9), make([]float32, 9), make([]float32, 8))
	})
}

func TestVectorsAllocateNothing(t *testing.T) {
	forLevels(t, func(t *testing.T, v *Vector, _ *rand.Rand) {
		a, b := make([]float32, 100), make([]float32, 100)
		noAllocs(t, func() {
			v.Add.VV(a, a, b)
			v.Mul.VS(a, a, 2)
			v.Fma.VSV(a, a, b, 3)
			v.Where.VV(a, a, b, b)
			v.Tanh(a, b)
			_ = v.Sum(a) + v.Dot(a, b) + float64(v.MaxOf(a))
		})
	})
}

func BenchmarkVector(b *testing.B) {
	const n = 1024
	x, y, z := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = float32(i)/n+0.5, 2
	}
	for _, l := range Levels() {
		v := Vectors(l)
		for _, c := range []struct {
			name string
			f    func()
		}{
			{"add", func() { v.Add.VV(z, x, y) }},
			{"fma", func() { v.Fma.VSV(z, x, y, 3) }},
			{"max", func() { v.Max.VV(z, x, y) }},
			{"div", func() { v.Div.VV(z, x, y) }},
			{"exp", func() { v.Exp(z, x) }},
			{"log", func() { v.Log(z, x) }},
			{"tanh", func() { v.Tanh(z, x) }},
			{"sigmoid", func() { v.Sigmoid(z, x) }},
			{"erf", func() { v.Erf(z, x) }},
			{"sum", func() { v.Sum(x) }},
			{"maxOf", func() { v.MaxOf(x) }},
		} {
			b.Run(fmt.Sprintf("%v/%s", l, c.name), func(b *testing.B) {
				for b.Loop() {
					c.f()
				}
				b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/n, "ns/element")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
