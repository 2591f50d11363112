package cudnn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// Constants of the library's headers.
const (
	dataFloat, dataHalf, dataBFloat16  = 0, 2, 9
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
	samples    int    // of the batch in one call
	bytes      uint64 // of workspace
}

// batch is so many samples of x and of y.
type batch struct {
	samples int
	x, y    uintptr // descriptors of tensors
}

// Plan is a convolution made ready on a card.
type Plan struct {
	h                *Handle
	conv             Conv
	batches          []batch // the whole and pieces of it
	w, bias          uintptr // descriptors of tensors
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
	if err := p.tensor(&p.bias, 1, [4]int{1, c.Y[1], 1, 1}); err != nil {
		return err
	}
	if err := l.check("cudnnCreateFilterDescriptor", l.filterCreate(&p.w)); err != nil {
		return err
	}
	if err := l.check("cudnnSetFilter4dDescriptor", l.filterSet(p.w, dataTypes[c.Type], c.format(), int32(c.W[0]), int32(c.W[1]), int32(c.W[2]), int32(c.W[3]))); err != nil {
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

// tensor makes the descriptor of a tensor of so many samples.
func (p *Plan) tensor(at *uintptr, samples int, shape [4]int) error {
	l := p.h.lib
	if err := l.check("cudnnCreateTensorDescriptor", l.tensorCreate(at)); err != nil {
		return err
	}
	return l.check("cudnnSetTensor4dDescriptor", l.tensorSet(*at, p.conv.format(), dataTypes[p.conv.Type], int32(samples), int32(shape[1]), int32(shape[2]), int32(shape[3])))
}

// batch describes so many samples of the convolution, the first time.
func (p *Plan) batch(samples int) (batch, error) {
	for _, b := range p.batches {
		if b.samples == samples {
			return b, nil
		}
	}
	p.batches = append(p.batches, batch{samples: samples})
	b := &p.batches[len(p.batches)-1]
	err := p.tensor(&b.x, samples, p.conv.X)
	if err == nil {
		err = p.tensor(&b.y, samples, p.conv.Y)
	}
	return *b, err
}

// setMath says which arithmetic is allowed. Without saying it would be TF32.
func (p *Plan) setMath(math int32) error {
	return p.h.lib.check("cudnnSetConvolutionMathType", p.h.lib.convSetMath(p.window, math))
}

// sample is how many numbers of a tensor are one sample's.
func sample(shape [4]int) int { return shape[1] * shape[2] * shape[3] }

// mostNumbers is how many a tensor of the library's may have.
const mostNumbers = 1<<31 - 1

// choose lists what the library offers, and takes what was remembered or else the first.
func (p *Plan) choose() error {
	c, size := p.conv, p.conv.Type.Size()
	x, y := sample(c.X), sample(c.Y)
	cuts := slices.DeleteFunc(cuts(c.X[0], int(p.h.leastPiece/int64(size*(x+y))), max(even(x, size), even(y, size))), func(c cut) bool { return c.samples*max(x, y) > mostNumbers })
	var ways []offer
	for i, cut := range cuts {
		if i > 0 && i < len(cuts)-1 {
			continue // what the library has for the smallest pieces it may lack for larger ones
		}
		more, err := p.list(cut.samples)
		if err != nil {
			return err
		}
		for _, o := range more {
			if !slices.Contains(ways, o) {
				ways = append(ways, o)
			}
		}
	}
	if c.Kind == GradW && c.Type != ir.F32 {
		cuts = cuts[:1] // the sum of pieces would be rounded each time
	}
	for _, o := range ways {
		if err := p.fit(o, cuts); err != nil {
			return err
		}
	}
	if len(p.offers) == 0 {
		l := p.h.lib
		return &Error{Func: "cudnnGetConvolution" + kindNames[c.Kind] + "Algorithm_v7", Code: notSupported, Name: l.errorString(notSupported),
			Text: fmt.Sprintf("nothing deterministic with at most %d bytes of workspace", p.room())}
	}
	if kept, ok := p.h.lib.remembers.Get(p.key()); ok {
		if o := p.find(kept); o != nil {
			p.made = true
			return p.take(*o)
		}
	}
	return p.take(p.offers[0])
}

// list is the library's deterministic algorithms for so many samples, its best guess first.
func (p *Plan) list(samples int) ([]offer, error) {
	l, c := p.h.lib, p.conv
	math := int32(mathFMA)
	if c.rounds() {
		math = mathTensorOp
	}
	if err := p.setMath(math); err != nil {
		return nil, err
	}
	b, err := p.batch(samples)
	if err != nil {
		return nil, err
	}
	in0, in1, out := operands(c.Kind, b.x, p.w, b.y)
	results, n := make([]performance, offersAtMost), int32(0)
	if err := l.check("cudnnGetConvolution"+kindNames[c.Kind]+"Algorithm_v7", l.algorithms[c.Kind](p.h.handle, in0, in1, p.window, out, offersAtMost, &n, &results[0])); err != nil {
		return nil, err
	}
	var ways []offer
	for _, r := range results[:n] {
		if r.status != 0 || r.determinism != deterministic || !c.rounds() && r.algo == rough[c.Kind] {
			continue
		}
		if !c.rounds() {
			r.math = mathFMA // whatever it says, this is what it will be done in
		}
		ways = append(ways, offer{algo: r.algo, math: r.math})
	}
	return ways, nil
}

// fit offers an algorithm for the whole batch, or else for the fewest pieces that take little enough workspace: with more of them, and less
// workspace, few algorithms are faster. Pieces may take half as much as the whole, because that costs little time, and other things need memory.
func (p *Plan) fit(o offer, cuts []cut) error {
	if err := p.setMath(o.math); err != nil {
		return err
	}
	for _, cut := range cuts {
		limit := p.room()
		if cut.samples < cut.batch {
			limit /= 2
		}
		bytes, ok, err := p.space(o, cut)
		if err != nil {
			return err
		}
		if !ok || int64(bytes) > limit {
			continue
		}
		o.samples, o.bytes = cut.samples, bytes
		// Bias without ReLU is in one call with one algorithm only.
		if p.conv.Bias && (p.conv.Relu || o.algo == implicitPrecompGEMM) {
			fused := o
			fused.fused = true
			p.offers = append(p.offers, fused)
		}
		p.offers = append(p.offers, o)
		return nil
	}
	return nil
}

// room is the most workspace that the convolution may need.
func (p *Plan) room() int64 {
	if room := p.conv.Room; room > 0 {
		return min(room, p.h.MaxWorkspace)
	}
	return p.h.MaxWorkspace
}

// space is how many bytes of workspace an algorithm needs for any piece. ok is false where the library does not have it.
func (p *Plan) space(o offer, c cut) (most uint64, ok bool, err error) {
	for _, samples := range c.sizes() {
		b, err := p.batch(samples)
		if err != nil {
			return 0, false, err
		}
		in0, in1, out := operands(p.conv.Kind, b.x, p.w, b.y)
		var bytes uint64
		if p.h.lib.workspace[p.conv.Kind](p.h.handle, in0, in1, p.window, out, o.algo, &bytes) != 0 {
			return 0, false, nil // and another is taken
		}
		most = max(most, bytes)
	}
	return most, true, nil
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
		// The library says only here that it has this algorithm, but not in one call with the rest. What pieces have been put into the stream
		// are computed again.
		p.by.fused = false
		err = p.run(x, w, y, bias, workspace)
	}
	if err != nil {
		return fmt.Errorf("cudnn: run %v: %w", p.conv, err)
	}
	return nil
}

// run does the pieces in order, so that the gradient by w is the same sum every time.
func (p *Plan) run(x, w, y, bias, workspace cuda.Ptr) error {
	c := p.conv
	cut := cut{c.X[0], p.by.samples}
	for i := range cut.pieces() {
		first, samples := cut.piece(i)
		b, err := p.batch(samples)
		if err != nil {
			return err
		}
		beta := &zero
		if c.Kind == GradW && i > 0 {
			beta = &one
		}
		bytes := c.Type.Size() * first
		x, y := x+cuda.Ptr(bytes*sample(c.X)), y+cuda.Ptr(bytes*sample(c.Y))
		if err := p.piece(b, x, w, y, bias, workspace, beta); err != nil {
			return err
		}
	}
	return nil
}

// piece puts one into the stream; the result is added to beta times what is there.
func (p *Plan) piece(b batch, x, w, y, bias, workspace cuda.Ptr, beta *float32) error {
	h, l, c := p.h, p.h.lib, p.conv
	if p.by.fused {
		return l.check("cudnnConvolutionBiasActivationForward", l.fused(h.handle, &one, b.x, x, p.w, w, p.window, p.by.algo, workspace, p.by.bytes,
			&zero, b.y, y, p.bias, bias, p.activate, b.y, y))
	}
	in0Desc, in1Desc, outDesc := operands(c.Kind, b.x, p.w, b.y)
	in0, in1, out := operands(c.Kind, x, w, y)
	err := l.check("cudnnConvolution"+kindNames[c.Kind], l.run[c.Kind](h.handle, &one, in0Desc, in0, in1Desc, in1, p.window, p.by.algo, workspace, p.by.bytes, beta, outDesc, out))
	if err == nil && c.Bias {
		err = l.check("cudnnAddTensor", l.addTensor(h.handle, &one, p.bias, bias, &one, b.y, y))
	}
	if err == nil && c.Relu {
		err = l.check("cudnnActivationForward", l.activation(h.handle, p.activate, &one, b.y, y, &zero, b.y, y))
	}
	return err
}

// Tune runs what the library offers for the convolution on the buffers given, whose result is overwritten, as far as bytes of workspace
// suffice, and stays with the fastest. What was remembered is not measured again; what is measured is remembered. Where nothing can be
// remembered Tune changes nothing, because another run might choose otherwise and give other bits. It waits for the card, and is not for a
// stream that is captured.
func (p *Plan) Tune(x, w, y, bias, workspace cuda.Ptr, bytes int64) error {
	if p.Tuned() {
		return nil
	}
	if err := p.tune(x, w, y, bias, workspace, bytes); err != nil {
		return fmt.Errorf("cudnn: tune %v: %w", p.conv, err)
	}
	return nil
}

// Tuned reports whether Tune would change nothing.
func (p *Plan) Tuned() bool { return p.made || !p.h.lib.remembers.Ready() }

func (p *Plan) tune(x, w, y, bias, workspace cuda.Ptr, bytes int64) error {
	before := p.by
	fits := slices.DeleteFunc(slices.Clone(p.offers), func(o offer) bool { return int64(o.bytes) > bytes })
	fastest, err := choices.Fastest(len(fits), false, func(i int, _ choices.Pace) (float64, error) {
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
	return fmt.Sprintf("cuDNN %d, %s, %v, workspace %d", p.h.lib.version, p.h.name, p.conv, p.room())
}

// encode is an offer as it is remembered.
func (o offer) encode() []byte {
	b := []byte{0}
	if o.fused {
		b[0] = 1
	}
	for _, n := range []uint32{uint32(o.algo), uint32(o.math), uint32(o.samples)} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
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
	end := func(at *uintptr, name string, destroy func(uintptr) int32) {
		if *at != 0 {
			errs = append(errs, l.check("cudnnDestroy"+name+"Descriptor", destroy(*at)))
			*at = 0
		}
	}
	for i := range p.batches {
		end(&p.batches[i].x, "Tensor", l.tensorDestroy)
		end(&p.batches[i].y, "Tensor", l.tensorDestroy)
	}
	end(&p.bias, "Tensor", l.tensorDestroy)
	end(&p.w, "Filter", l.filterDestroy)
	end(&p.window, "Convolution", l.convDestroy)
	end(&p.activate, "Activation", l.activationDestroy)
	return errors.Join(errs...)
}
