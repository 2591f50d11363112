package exec

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

func TestSumsOfMasked(t *testing.T) {
	openCard(t)
	sumsOfMasked(t)
}

// sumsOfMasked: what masks the gradient of an activation also adds it up, if there is enough of it, and products find it masked.
func sumsOfMasked(t *testing.T) {
	for _, c := range []struct {
		batch, out int
		masks      int // tasks that do nothing else
	}{{264, 70, 0}, {264, 72, 0}, {1000, 260, 0}, {40, 72, 1}} {
		const in, next, last = 36, 20, 3
		s := newSketch(t)
		slots := map[string]*ir.Slot{
			"g": s.slot(ir.Input, ir.F32, c.batch, next), "w": s.slot(ir.Params, ir.F32, next, c.out), "h": s.slot(ir.Input, ir.F32, c.batch, c.out),
			"x": s.slot(ir.Input, ir.F32, c.batch, in), "v": s.slot(ir.Params, ir.F32, c.out, last),
			"dw": s.slot(ir.Output, ir.F32, c.out, in), "sums": s.slot(ir.Output, ir.F32, c.out), "dx": s.slot(ir.Output, ir.F32, c.batch, last),
		}
		dy := s.Select(s.Map(ir.Le, s.Read(slots["h"]), s.Const(0)), s.Const(0), s.MatMul(s.Read(slots["g"]), s.Read(slots["w"])))
		s.Store(slots["dx"], s.MatMul(dy, s.Read(slots["v"])))
		s.Store(slots["dw"], s.MatMul(s.T(dy), s.Read(slots["x"])))
		s.Store(slots["sums"], s.Sum(s.T(dy), 1))
		plain := way{name: "plain", plan: (*planner).plain}
		l := loadWith(t, s.compile(), func(e *Exec) libraries { return ourOwn{only{vendor{e, e.tools}, plain}} })
		if n := l.plan.masks(); n != c.masks {
			t.Errorf("%d by %d: %d tasks only mask, want %d:\n%v", c.batch, c.out, n, c.masks, l.plan)
		}
		rng := rand.New(rand.NewPCG(7, uint64(c.batch*c.out)))
		x := map[string][]float32{}
		for name, slot := range slots {
			x[name] = make([]float32, slot.Shape.Size())
			for i := range x[name] {
				if x[name][i] = float32(rng.NormFloat64()); slot.Region == ir.Output {
					x[name][i] = float32(math.NaN())
				}
			}
			l.write(t, slot, x[name])
		}
		want := map[string][]float64{}
		for _, name := range []string{"dw", "sums", "dx"} {
			want[name] = make([]float64, slots[name].Shape.Size())
		}
		for i := range c.batch {
			for o := range c.out {
				if x["h"][i*c.out+o] <= 0 {
					continue
				}
				dy := 0.
				for k := range next {
					dy += float64(x["g"][i*next+k]) * float64(x["w"][k*c.out+o])
				}
				want["sums"][o] += dy
				for j := range in {
					want["dw"][o*in+j] += dy * float64(x["x"][i*in+j])
				}
				for j := range last {
					want["dx"][i*last+j] += dy * float64(x["v"][o*last+j])
				}
			}
		}
		if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
			t.Fatal(err)
		}
		for name, want := range want {
			for i, got := range l.read(t, slots[name]) {
				if !(math.Abs(float64(got)-want[i]) <= 2e-3) { // of up to a thousand numbers of about 4 each, in float32
					t.Fatalf("%d by %d: number %d of %s is %v, want %v", c.batch, c.out, i, name, got, want[i])
				}
			}
		}
	}
}
