package cudnn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Constants of the library's headers.
const (
	dataFloat                          = 0
	formatNCHW, formatNHWC             = 0, 1
	crossCorrelation                   = 1
	mathTensorOp, mathFMA              = 1, 3
	deterministic                      = 1
	activationRelu, activationIdentity = 1, 5
	propagateNaN                       = 1
	implicitPrecompGEMM                = 1
	offersAtMost                       = 16
)

// rough is the algorithm, by Kind, that transforms large tiles as Winograd does. Where few channels are summed it is off by more than 1e-5,
// which exact float32 is not. The gradient by w sums over all places of all images, among which that is lost.
var rough = [...]int32{Forward: 7, GradX: 5, GradW: -1}

// performance is a cudnnConvolution...AlgoPerf_t, which is alike for the three kinds.
type performance struct {
	algo        int32
	status      int32
	_           float32 // time
	memory      uint64
	determinism int32
	math        int32
	_           [3]int32
}

// offer is a way to do a convolution.
type offer struct {
	algo, math int32
	fused      bool   // bias and activation in one call with the convolution
	bytes      uint64 // of workspace
}

// Plan is a convolution made ready on a card.
type Plan struct {
	h                *Handle
	conv             Conv
	x, w, y, bias    uintptr // descriptors of tensors
	window, activate uintptr // of the convolution and what follows
	offers           []offer // the library's best guess first
	by               offer
	made             bool // by measuring, now or earlier
}

// Conv makes a convolution ready. One that the library does not have gives an [*Error] for which [Unsupported] is true.
func (h *Handle) Conv(c Conv) (*Plan, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("cudnn: plan %v: %w", c, err)
	}
	p := &Plan{h: h, conv: c}
	err := p.describe()
	if err == nil {
		err = p.choose()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cudnn: plan %v: %w", c, err), p.Close())
	}
	return p, nil
}

// describe makes the descriptors.
func (p *Plan) describe() error {
	l, c := p.h.lib, p.conv
	for _, t := range []struct {
		at    *uintptr
		shape [4]int
	}{{&p.x, c.X}, {&p.y, c.Y}, {&p.bias, [4]int{1, c.Y[1], 1, 1}}} {
		if err := l.check("cudnnCreateTensorDescriptor", l.tensorCreate(t.at)); err != nil {
			return err
		}
		s := t.shape
		if err := l.check("cudnnSetTensor4dDescriptor", l.tensorSet(*t.at, c.format(), dataFloat, int32(s[0]), int32(s[1]), int32(s[2]), int32(s[3]))); err != nil {
			return err
		}
	}
	if err := l.check("cudnnCreateFilterDescriptor", l.filterCreate(&p.w)); err != nil {
		return err
	}
	if err := l.check("cudnnSetFilter4dDescriptor", l.filterSet(p.w, dataFloat, c.format(), int32(c.W[0]), int32(c.W[1]), int32(c.W[2]), int32(c.W[3]))); err != nil {
		return err
	}
	if err := l.check("cudnnCreateConvolutionDescriptor", l.convCreate(&p.window)); err != nil {
		return err
	}
	w := c.Window
	err := l.check("cudnnSetConvolution2dDescriptor", l.convSet(p.window, int32(w.Padding[0]), int32(w.Padding[1]), int32(w.Stride[0]), int32(w.Stride[1]),
		int32(w.Dilation[0]), int32(w.Dilation[1]), crossCorrelation, dataFloat))
	if err != nil {
		return err
	}
	if err := l.check("cudnnSetConvolutionGroupCount", l.convSetGroups(p.window, int32(w.Groups))); err != nil {
		return err
	}
	if err := l.check("cudnnCreateActivationDescriptor", l.activationCreate(&p.activate)); err != nil {
		return err
	}
	mode := int32(activationIdentity)
	if c.Relu {
		mode = activationRelu
	}
	return l.check("cudnnSetActivationDescriptor", l.activationSet(p.activate, mode, propagateNaN, 0))
}

// setMath says which arithmetic is allowed. Without saying it would be TF32.
func (p *Plan) setMath(math int32) error {
	return p.h.lib.check("cudnnSetConvolutionMathType", p.h.lib.convSetMath(p.window, math))
}

// choose lists what the library offers, and takes what was remembered or else the first.
func (p *Plan) choose() error {
	l, c := p.h.lib, p.conv
	math := int32(mathFMA)
	if c.TF32 {
		math = mathTensorOp
	}
	if err := p.setMath(math); err != nil {
		return err
	}
	in0, in1, out := operands(c.Kind, p.x, p.w, p.y)
	results, n := make([]performance, offersAtMost), int32(0)
	get := "cudnnGetConvolution" + kindNames[c.Kind]
	if err := l.check(get+"Algorithm_v7", l.algorithms[c.Kind](p.h.handle, in0, in1, p.window, out, offersAtMost, &n, &results[0])); err != nil {
		return err
	}
	for _, r := range results[:n] {
		if r.status != 0 || r.determinism != deterministic || !c.TF32 && r.algo == rough[c.Kind] {
			continue
		}
		if !c.TF32 {
			r.math = mathFMA // whatever it says, this is what it will be done in
		}
		if err := p.setMath(r.math); err != nil {
			return err
		}
		o := offer{algo: r.algo, math: r.math}
		if l.workspace[c.Kind](p.h.handle, in0, in1, p.window, out, r.algo, &o.bytes) != 0 || int64(o.bytes) > p.h.MaxWorkspace {
			continue // and another is taken
		}
		if slices.Contains(p.offers, o) {
			continue
		}
		// Bias without ReLU is in one call with one algorithm only.
		if c.Bias && (c.Relu || r.algo == implicitPrecompGEMM) {
			fused := o
			fused.fused = true
			p.offers = append(p.offers, fused)
		}
		p.offers = append(p.offers, o)
	}
	if len(p.offers) == 0 {
		return &Error{Func: get + "Algorithm_v7", Code: notSupported, Name: l.errorString(notSupported), Text: fmt.Sprintf("nothing deterministic with at most %d bytes of workspace", p.h.MaxWorkspace)}
	}
	if kept, ok := l.remembers.Get(p.key()); ok {
		if o := p.find(kept); o != nil {
			p.made = true
			return p.take(*o)
		}
	}
	return p.take(p.offers[0])
}

// take makes an offer the plan's.
func (p *Plan) take(o offer) error {
	p.by = o
	return p.setMath(o.math)
}

// Workspace is how many bytes of workspace Run needs.
func (p *Plan) Workspace() int64 { return int64(p.by.bytes) }

// TuneWorkspace is how many bytes of workspace Tune needs to try everything.
func (p *Plan) TuneWorkspace() int64 {
	most := p.by.bytes
	if !p.made {
		for _, o := range p.offers {
			most = max(most, o.bytes)
		}
	}
	return int64(most)
}

var one, zero float32 = 1, 0

// Run puts the convolution into the stream. The result is y, x for GradX, where y is dy, or w for GradW. A plan without bias ignores that.
// workspace has the bytes that Workspace says, on a 256-byte boundary.
func (p *Plan) Run(x, w, y, bias, workspace cuda.Ptr) error {
	err := p.run(x, w, y, bias, workspace)
	if err != nil && p.by.fused && Unsupported(err) {
		// The library says only here that it has this algorithm, but not in one call with the rest. Nothing was put into the stream.
		p.by.fused = false
		err = p.run(x, w, y, bias, workspace)
	}
	if err != nil {
		return fmt.Errorf("cudnn: run %v: %w", p.conv, err)
	}
	return nil
}

func (p *Plan) run(x, w, y, bias, workspace cuda.Ptr) error {
	h, l, c := p.h, p.h.lib, p.conv
	if p.by.fused {
		return l.check("cudnnConvolutionBiasActivationForward", l.fused(h.handle, &one, p.x, x, p.w, w, p.window, p.by.algo, workspace, p.by.bytes,
			&zero, p.y, y, p.bias, bias, p.activate, p.y, y))
	}
	in0Desc, in1Desc, outDesc := operands(c.Kind, p.x, p.w, p.y)
	in0, in1, out := operands(c.Kind, x, w, y)
	err := l.check("cudnnConvolution"+kindNames[c.Kind], l.run[c.Kind](h.handle, &one, in0Desc, in0, in1Desc, in1, p.window, p.by.algo, workspace, p.by.bytes, &zero, outDesc, out))
	if err == nil && c.Bias {
		err = l.check("cudnnAddTensor", l.addTensor(h.handle, &one, p.bias, bias, &one, p.y, y))
	}
	if err == nil && c.Relu {
		err = l.check("cudnnActivationForward", l.activation(h.handle, p.activate, &one, p.y, y, &zero, p.y, y))
	}
	return err
}

// Tune runs what the library offers for the convolution on the buffers given, whose result is overwritten, as far as bytes of workspace
// suffice, and stays with the fastest. What was remembered is not measured again; what is measured is remembered. Where nothing can be
// remembered Tune changes nothing, because another run might choose otherwise and give other bits. It waits for the card, and is not for a
// stream that is captured.
func (p *Plan) Tune(x, w, y, bias, workspace cuda.Ptr, bytes int64) error {
	if p.made || !p.h.lib.remembers.Ready() {
		return nil
	}
	if err := p.tune(x, w, y, bias, workspace, bytes); err != nil {
		return fmt.Errorf("cudnn: tune %v: %w", p.conv, err)
	}
	return nil
}

func (p *Plan) tune(x, w, y, bias, workspace cuda.Ptr, bytes int64) error {
	before := p.by
	fits := slices.DeleteFunc(slices.Clone(p.offers), func(o offer) bool { return int64(o.bytes) > bytes })
	fastest, err := choices.Fastest(len(fits), func(i int) (float64, error) {
		if err := p.take(fits[i]); err != nil {
			return 0, err
		}
		return p.h.measure(func() error { return p.run(x, w, y, bias, workspace) })
	})
	if err != nil {
		return errors.Join(err, p.take(before))
	}
	kept, ok := p.h.lib.remembers.Put(p.key(), fits[fastest].encode(), func(kept []byte) bool { return p.find(kept) != nil })
	if !ok {
		return p.take(before)
	}
	p.made = true
	return p.take(*p.find(kept))
}

// key is what a choice is remembered under.
func (p *Plan) key() string {
	return fmt.Sprintf("cuDNN %d, %s, %v, workspace %d", p.h.lib.version, p.h.name, p.conv, p.h.MaxWorkspace)
}

// encode is an offer as it is remembered.
func (o offer) encode() []byte {
	b := []byte{0}
	if o.fused {
		b[0] = 1
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(o.algo))
	return binary.LittleEndian.AppendUint32(b, uint32(o.math))
}

// find is the offer that was remembered, nil if it is none now.
func (p *Plan) find(kept []byte) *offer {
	for i, o := range p.offers {
		if string(o.encode()) == string(kept) {
			return &p.offers[i]
		}
	}
	return nil
}

// Close gives back what the library holds for the plan.
func (p *Plan) Close() error {
	l := p.h.lib
	var errs []error
	for _, d := range []struct {
		at      *uintptr
		name    string
		destroy func(uintptr) int32
	}{
		{&p.x, "Tensor", l.tensorDestroy}, {&p.y, "Tensor", l.tensorDestroy}, {&p.bias, "Tensor", l.tensorDestroy}, {&p.w, "Filter", l.filterDestroy},
		{&p.window, "Convolution", l.convDestroy}, {&p.activate, "Activation", l.activationDestroy},
	} {
		if *d.at != 0 {
			errs = append(errs, l.check("cudnnDestroy"+d.name+"Descriptor", d.destroy(*d.at)))
			*d.at = 0
		}
	}
	return errors.Join(errs...)
}
