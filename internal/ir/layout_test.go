package ir

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// convNet is a convolution with bias and ReLU, a max pooling and a linear layer, with the gradients by parameters.
func convNet(images int) *Graph {
	const classes = 3
	g := &Graph{}
	win := Window{Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
	pool := Window{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: [2]int{1, 1}, Groups: 1}
	read := func(r Region, name string, dims ...int) *Value {
		s := &Slot{Region: r, Name: name, Shape: Of(dims...)}
		for _, v := range g.Values {
			if r2, ok := v.Op.(Read); ok && r2.Slot.Region == r {
				s.Offset = align(r2.Slot.End())
			}
		}
		return g.Read(s)
	}
	grad := func(of, v *Value) {
		s := *of.Op.(Read).Slot
		s.Region = Grads
		g.Store(&s, v)
	}
	x := read(Input, "x", images, 2, 6, 6)
	k, bias, w := read(Params, "k", 4, 2, 3, 3), read(Params, "bias", 4), read(Params, "w", classes, 16)
	y := g.Map(Relu, g.Plus(g.Add(Conv2d{win}, nil, x, k), g.Reshape(bias, 4, 1, 1)))
	p := g.Add(Pool2d{Mode: MaxPool, Pool: pool}, nil, y)
	drop := g.Map(Lt, g.Rand(1, p.Shape...), g.Const(0.5))
	flat := g.Reshape(g.Select(drop, g.Const(0), p), images, 16)
	g.Store(&Slot{Region: Output, Name: "out", Shape: Of(images, classes)}, g.MatMul(flat, g.T(w)))
	dout := read(Input, "dout", images, classes)
	grad(w, g.MatMul(g.T(dout), flat))
	dp := g.Select(drop, g.Const(0), g.Reshape(g.MatMul(dout, w), p.Shape...))
	dy := g.Select(g.Map(Le, y, g.Const(0)), g.Const(0), g.Add(Pool2dGrad{Mode: MaxPool, Pool: pool}, nil, y, dp))
	grad(k, g.Add(Conv2dGradW{win}, nil, x, dy))
	grad(bias, g.Sum(dy, 0, 2, 3))
	return g
}

// attributes are those of an op as it is printed.
var attributes = regexp.MustCompile(`\{.*\} `)

// TestChannelsLast: few images go through the linear layer in their own order, for more of them its weights are brought into theirs. The mask
// of ReLU comes after the pooling, and the bias is summed there.
func TestChannelsLast(t *testing.T) {
	for images, want := range map[int]string{
		2: `
 Copy work+0:f32[2,6,6,2] <- input+0:f32[2,6,6,2]/[72 6 1 36]
 Copy work+320:f32[4,3,3,2] <- params+0:f32[4,3,3,2]/[18 3 1 9]
 Conv2d work+192:f32[2,4,4,4] <- work+0:f32[2,6,6,2] work+320:f32[4,3,3,2] params+128:f32[4] +bias relu
 Pool2d work+320:f32[2,2,2,4], work+384:i32[2,2,2,1] <- work+192:f32[2,4,4,4] places
 MatMul work+192:f32[2,16] <- input+192:f32[2,3] params+192:f32[3,16]
 Fused work+320:f32[2,2,2,4], work+448:f32[2,2,2,4] <- work+320:f32[2,2,2,4] work+192:f32[2,2,2,4]/[16 2 1 4]
   for [2,2,2,4]: r0=random(1, channels last) r1=0.5 r2=lt(r0,r1) r3=0 r4=in0 r5=where(r2,r3,r4) r6=le(r4,r3) r7=in1 r8=where(r2,r3,r7) r9=where(r6,r3,r8) out0=r5 out1=r9
 Copy work+192:f32[2,4,2,2] <- work+320:f32[2,4,2,2]/[16 1 8 4]
 MatMul output+0:f32[2,3] <- work+192:f32[2,16] params+192:f32[16,3]/[1 16]
 MatMul grads+192:f32[3,16] <- input+192:f32[3,2]/[1 3] work+192:f32[2,16]
 Pool2dGrad work+192:f32[2,4,4,4] <- work+384:i32[2,2,2,1] work+448:f32[2,2,2,4]
 Conv2dGradW work+320:f32[4,3,3,2] <- work+0:f32[2,6,6,2] work+192:f32[2,4,4,4]
 Reduce grads+128:f32[1,1,1,4] <- work+448:f32[2,2,2,4]
   for [2,2,2,4]: r0=in0
 Copy grads+0:f32[4,2,3,3] <- work+320:f32[4,2,3,3]/[18 1 6 2]  # k
`,
		8: `
 Copy work+0:f32[8,6,6,2] <- input+0:f32[8,6,6,2]/[72 6 1 36]
 Copy work+1088:f32[4,3,3,2] <- params+0:f32[4,3,3,2]/[18 3 1 9]
 Conv2d work+576:f32[8,4,4,4] <- work+0:f32[8,6,6,2] work+1088:f32[4,3,3,2] params+128:f32[4] +bias relu
 Pool2d work+1088:f32[8,2,2,4], work+1216:i32[8,2,2,1] <- work+576:f32[8,4,4,4] places
 Copy work+704:f32[3,2,2,4] <- params+192:f32[3,2,2,4]/[16 2 1 4]
 MatMul work+576:f32[8,16] <- input+576:f32[8,3] work+704:f32[3,16]
 Fused work+1088:f32[8,2,2,4], work+576:f32[8,2,2,4] <- work+1088:f32[8,2,2,4] work+576:f32[8,2,2,4]
   for [8,2,2,4]: r0=random(1, channels last) r1=0.5 r2=lt(r0,r1) r3=0 r4=in0 r5=where(r2,r3,r4) r6=le(r4,r3) r7=in1 r8=where(r2,r3,r7) r9=where(r6,r3,r8) out0=r5 out1=r9
 MatMul output+0:f32[8,3] <- work+1088:f32[8,16] work+704:f32[16,3]/[1 16]
 MatMul work+704:f32[3,16] <- input+576:f32[3,8]/[1 3] work+1088:f32[8,16]
 Copy grads+192:f32[3,4,2,2] <- work+704:f32[3,4,2,2]/[16 1 8 4]
 Pool2dGrad work+704:f32[8,4,4,4] <- work+1216:i32[8,2,2,1] work+576:f32[8,2,2,4]
 Conv2dGradW work+1216:f32[4,3,3,2] <- work+0:f32[8,6,6,2] work+704:f32[8,4,4,4]
 Reduce grads+128:f32[1,1,1,4] <- work+576:f32[8,2,2,4]
   for [8,2,2,4]: r0=in0
 Copy grads+0:f32[4,2,3,3] <- work+1216:f32[4,2,3,3]/[18 1 6 2]  # k
`,
	} {
		target := Target{TF32: true, Traits: Traits{ChannelsLast: true}}
		p, err := Compile("net", [NumRegions]int{Params: 1 << 10, Grads: 1 << 10}, target, Part{Graph: convNet(images)})
		if err != nil {
			t.Fatal(err)
		}
		got := "\n"
		for _, line := range strings.Split(p.String(), "\n") {
			switch {
			case strings.Contains(line, "<-"):
				got += attributes.ReplaceAllString(line[4:], " ") + "\n"
			case strings.Contains(line, "for ["):
				got += line[4:] + "\n"
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d images (-want +got):\n%s", images, diff)
		}
	}
}

// The gradient by the filters of images of one channel masks and sums up what comes back on the way, where that is nobody else's.
func TestMaskedFilterGradient(t *testing.T) {
	for _, shared := range []bool{false, true} {
		var g Graph
		win := Window{Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
		in := func(offset int, dims ...int) *Value {
			return g.Read(&Slot{Region: Input, Name: "in", Offset: offset, Shape: Of(dims...)})
		}
		out := func(offset int, v *Value) {
			g.Store(&Slot{Region: Output, Name: "out", Offset: offset, Shape: v.Shape}, v)
		}
		x, w, dz := in(0, 2, 1, 8, 8), in(512, 8, 4, 3, 3), in(1024, 2, 8, 4, 4)
		y := g.Map(Relu, g.Add(Conv2d{win}, nil, x, in(128, 4, 1, 3, 3)))
		dy := g.Add(Conv2dGradX{Conv: win, In: [4]int(y.Shape)}, nil, w, dz)
		dy = g.Select(g.Map(Le, y, g.Const(0)), g.Const(0), dy)
		out(0, g.Add(Conv2dGradW{win}, nil, x, dy))
		out(64, g.Sum(dy, 0, 2, 3))
		if shared {
			out(128, dy)
		}
		p, err := Compile("net", [NumRegions]int{}, Target{TF32: true, Traits: Traits{ChannelsLast: true}}, Part{Graph: &g})
		if err != nil {
			t.Fatal(err)
		}
		if taken := strings.Contains(p.String(), "mask sums"); taken == shared {
			t.Errorf("dy is stored: %t:\n%s", shared, p)
		}
	}
}
