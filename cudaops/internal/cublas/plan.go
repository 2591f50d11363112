package cublas

import (
	"errors"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// algorithm is a cublasLtMatmulAlgo_t, which means something to the same version of the library only.
type algorithm [8]uint64

// heuristic is a cublasLtMatmulHeuristicResult_t.
type heuristic struct {
	algo      algorithm
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// Attributes of the library's descriptors.
const (
	layoutBatchCount, layoutBatchStride            = 5, 6
	descTransA, descEpilogue, descBias             = 3, 7, 8 // descTransB is 4
	prefWorkspace, prefReduction                   = 1, 3
	prefAlignA, prefAlignB, prefAlignC, prefAlignD = 5, 6, 7, 8
	transposeOp                                    = 1
	reductionComputeType                           = 2 // parts are stored and then added up in order
	candidates                                     = 16
)

// Alignment is the largest boundary, in bytes, that an algorithm asks buffers to lie on.
const Alignment cuda.Ptr = 16

// Plan is a product made ready on a card.
type Plan struct {
	h       *Handle
	product Product
	desc    uintptr
	layouts [3]uintptr // A, B and C; the library's first operand is B
	bias    cuda.Ptr   // that desc has

	workspace cuda.Ptr // the plan's own, or 0

	// choice has an algorithm for buffers on 16-byte boundaries, then one for any others. The one in use is known when the addresses are.
	choice [2]choice
}

// choice is the algorithm for buffers of one alignment.
type choice struct {
	algo   *algorithm
	bytes  uint64      // of workspace
	made   bool        // by measuring, now or earlier
	offers []heuristic // what the library offers, best guess first
}

// Plan makes a product ready. An operand that the library cannot take gives a [*LayoutError]; a product that it does not have, an [*Error]
// for which [Unsupported] is true.
func (h *Handle) Plan(product Product) (*Plan, error) {
	if err := product.check(); err != nil {
		return nil, err
	}
	p := &Plan{h: h, product: product.fold()}
	if err := p.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("cublas: plan %v: %w", p, err), p.Close())
	}
	return p, nil
}

// Unsupported reports whether an error says that the library has nothing for an operation.
func Unsupported(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == notSupported
}

// String describes the product, all of it: it is what is remembered of.
func (p *Plan) String() string {
	q := p.product
	return fmt.Sprintf("%dx%dx%dx%d %v%v%v %s to %s bias %t relu %t sums %d tf32 %t",
		q.Batch, q.M, q.K, q.N, q.A, q.B, q.C, q.In, q.Out, q.Bias, q.Relu, q.BiasGrad, q.TF32)
}

// prepare makes the descriptors and chooses the algorithms.
func (p *Plan) prepare() error {
	q, l := p.product, p.h.lib
	a, b, c, err := q.layouts()
	if err != nil {
		return err
	}
	if err := l.check("cublasLtMatmulDescCreate", l.descCreate(&p.desc, q.compute(), realF32)); err != nil {
		return err
	}
	if err := p.set(descEpilogue, q.epilogue(), 4); err != nil {
		return err
	}
	for i, m := range [...]layout{b, a} {
		if m.transposed {
			if err := p.set(descTransA+int32(i), transposeOp, 4); err != nil {
				return err
			}
		}
	}
	for i, m := range [...]layout{a, b, c} {
		dtype := q.In
		if i == 2 {
			dtype = q.Out
		}
		if err := p.layout(&p.layouts[i], m, dtype); err != nil {
			return err
		}
	}
	if err := p.choose(&p.choice[0], Alignment); err != nil || q.Aligned {
		return err
	}
	// Some products the library has for well aligned buffers only.
	if err := p.choose(&p.choice[1], cuda.Ptr(q.Out.Size())); err != nil && !Unsupported(err) {
		return err
	}
	return nil
}

// set sets an attribute of the product's descriptor, of the size given.
func (p *Plan) set(attribute int32, value, size uint64) error {
	l := p.h.lib
	return l.check("cublasLtMatmulDescSetAttribute", l.descSet(p.desc, attribute, &value, size))
}

// layout makes the descriptor of a matrix.
func (p *Plan) layout(at *uintptr, m layout, dtype ir.DType) error {
	l := p.h.lib
	if err := l.check("cublasLtMatrixLayoutCreate", l.layoutCreate(at, dataTypes[dtype], uint64(m.rows), uint64(m.cols), int64(m.ld))); err != nil {
		return err
	}
	if p.product.Batch == 1 {
		return nil
	}
	count, stride := uint64(p.product.Batch), uint64(m.batch)
	return errors.Join(
		l.check("cublasLtMatrixLayoutSetAttribute", l.layoutSet(*at, layoutBatchCount, &count, 4)),
		l.check("cublasLtMatrixLayoutSetAttribute", l.layoutSet(*at, layoutBatchStride, &stride, 8)))
}

// choose takes the algorithm that was remembered for buffers of an alignment, or else the library's first.
func (p *Plan) choose(c *choice, alignment cuda.Ptr) error {
	l := p.h.lib
	if p.product.vector() {
		// The library looks at the address's alignment.
		if err := p.setBias(alignment); err != nil {
			return err
		}
	}
	if kept, ok := l.remembers.Get(p.key(c)); ok && p.use(c, kept) {
		return nil
	}
	var pref uintptr
	if err := l.check("cublasLtMatmulPreferenceCreate", l.prefCreate(&pref)); err != nil {
		return err
	}
	results, n := make([]heuristic, candidates), int32(0)
	err := p.prefer(pref, uint64(alignment))
	if err == nil {
		err = l.check("cublasLtMatmulAlgoGetHeuristic", l.heuristic(p.h.handle, p.desc, p.layouts[1], p.layouts[0], p.layouts[2], p.layouts[2], pref, candidates, &results[0], &n))
	}
	if err = errors.Join(err, l.check("cublasLtMatmulPreferenceDestroy", l.prefDestroy(pref))); err != nil {
		return err
	}
	for _, r := range results[:n] {
		if r.state == 0 && r.workspace <= p.room() {
			c.offers = append(c.offers, r)
		}
	}
	if len(c.offers) == 0 {
		return l.check("cublasLtMatmulAlgoGetHeuristic", notSupported)
	}
	c.offers = p.varied(c.offers)
	c.algo, c.bytes = &c.offers[0].algo, c.offers[0].workspace
	return nil
}

// prefer says which algorithms will do.
func (p *Plan) prefer(pref uintptr, alignment uint64) error {
	l := p.h.lib
	for _, v := range []struct {
		attribute   int32
		value, size uint64
	}{
		{prefWorkspace, p.room(), 8}, {prefReduction, reductionComputeType, 4},
		{prefAlignA, alignment, 4}, {prefAlignB, alignment, 4}, {prefAlignC, alignment, 4}, {prefAlignD, alignment, 4},
	} {
		if err := l.check("cublasLtMatmulPreferenceSetAttribute", l.prefSet(pref, v.attribute, &v.value, v.size)); err != nil {
			return err
		}
	}
	return nil
}

// room is the most workspace that the product may need.
func (p *Plan) room() uint64 {
	if room := p.product.Room; room > 0 {
		return uint64(min(room, p.h.bytes))
	}
	return uint64(p.h.bytes)
}

// Run puts the product into the stream. bias is the vector that is added or summed; a product without one ignores it.
func (p *Plan) Run(a, b, c, bias cuda.Ptr) error {
	if err := p.run(p.chosen(a, b, c, bias), a, b, c, bias, p.space()); err != nil {
		return fmt.Errorf("cublas: run %v: %w", p, err)
	}
	return nil
}

// Workspace is how many bytes of workspace the product needs, for any buffers. Tune may change that.
func (p *Plan) Workspace() int64 { return int64(max(p.choice[0].bytes, p.choice[1].bytes)) }

// MostWorkspace is what Workspace may be after Tune.
func (p *Plan) MostWorkspace() int64 {
	most := uint64(p.Workspace())
	for i := range p.choice {
		for _, o := range p.choice[i].offers {
			most = max(most, o.workspace)
		}
	}
	return int64(most)
}

// SetWorkspace gives the plan a workspace of its own, on a 256-byte boundary, instead of the handle's: as much as Workspace says, and for Tune
// as much as the handle allows. Plans whose products may run at the same time must not share one.
func (p *Plan) SetWorkspace(at cuda.Ptr) { p.workspace = at }

// space is the workspace to use.
func (p *Plan) space() cuda.Ptr {
	if p.workspace != 0 {
		return p.workspace
	}
	return p.h.workspace
}

// chosen is the choice for buffers.
func (p *Plan) chosen(a, b, c, bias cuda.Ptr) *choice {
	bits := a | b | c
	if p.product.vector() {
		bits |= bias
	}
	if bits%Alignment == 0 {
		return &p.choice[0]
	}
	return &p.choice[1]
}

var one, zero float32 = 1, 0

func (p *Plan) run(by *choice, a, b, c, bias, workspace cuda.Ptr) error {
	if by.algo == nil {
		return fmt.Errorf("buffers at %#x, %#x, %#x and %#x: this product is for 16-byte boundaries only: %w", a, b, c, bias, p.h.lib.check("cublasLtMatmul", notSupported))
	}
	if p.product.vector() {
		if err := p.setBias(bias); err != nil {
			return err
		}
	}
	h, l := p.h, p.h.lib
	return l.check("cublasLtMatmul", l.matmul(h.handle, p.desc, &one, b, p.layouts[1], a, p.layouts[0], &zero, c, p.layouts[2], c, p.layouts[2],
		by.algo, workspace, by.bytes, h.stream))
}

// setBias sets the vector's address, where it is another than before.
func (p *Plan) setBias(bias cuda.Ptr) error {
	if bias == p.bias {
		return nil
	}
	p.bias = bias
	return p.set(descBias, uint64(bias), 8)
}

// Close gives back what the library holds for the plan.
func (p *Plan) Close() error {
	l := p.h.lib
	var errs []error
	for i, layout := range p.layouts {
		if layout != 0 {
			errs = append(errs, l.check("cublasLtMatrixLayoutDestroy", l.layoutDestroy(layout)))
			p.layouts[i] = 0
		}
	}
	if p.desc != 0 {
		errs = append(errs, l.check("cublasLtMatmulDescDestroy", l.descDestroy(p.desc)))
		p.desc = 0
	}
	return errors.Join(errs...)
}
