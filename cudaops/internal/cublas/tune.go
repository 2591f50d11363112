package cublas

import (
	"encoding/binary"
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Tune runs all that the library offers for the product on the buffers given, whose results are overwritten, and stays with the fastest.
// The operands should hold numbers as they will: a card takes less power for zeros, and is faster. What was remembered is not measured again; what is measured is remembered. Where nothing can be remembered Tune changes nothing, because
// another run might choose otherwise and give other bits. It waits for the card, and is not for a stream that is captured.
func (p *Plan) Tune(a, b, c, bias cuda.Ptr) error {
	if p.Tuned(a, b, c, bias) {
		return nil
	}
	by := p.chosen(a, b, c, bias)
	if p.space() == 0 && p.h.bytes > 0 {
		return fmt.Errorf("cublas: tune %v: no workspace", p)
	}
	if err := p.tune(by, a, b, c, bias); err != nil {
		return fmt.Errorf("cublas: tune %v: %w", p, err)
	}
	return nil
}

// Tuned reports whether Tune would change nothing for these buffers.
func (p *Plan) Tuned(a, b, c, bias cuda.Ptr) bool {
	return p.chosen(a, b, c, bias).made || !p.h.lib.remembers.Ready()
}

func (p *Plan) tune(by *choice, a, b, c, bias cuda.Ptr) error {
	fastest, err := choices.Fastest(len(by.offers), p.product.Heavy(), func(i int, pace choices.Pace) (float64, error) {
		// What the library offered it may still refuse when it is run.
		try := &choice{algo: &by.offers[i].algo, bytes: by.offers[i].workspace}
		return p.h.measure(pace, func() error { return p.run(try, a, b, c, bias, p.space()) })
	})
	if err != nil {
		return err
	}
	kept, ok := p.h.lib.remembers.Put(p.key(by), by.offers[fastest].algo.bytes(), func(kept []byte) bool { return p.use(&choice{}, kept) })
	if ok && !p.use(by, kept) {
		return p.h.lib.check("cublasLtMatmulAlgoCheck", notSupported)
	}
	return nil
}

// key is what a choice is remembered under.
func (p *Plan) key(by *choice) string {
	alignment := "aligned"
	if by == &p.choice[1] {
		alignment = "any alignment"
	}
	how := ", pairs"
	if p.product.Heavy() {
		how = ", sustained"
	}
	return fmt.Sprintf("cublasLt %d, %s, %v, %s, workspace %d%s", p.h.lib.version, p.h.name, p, alignment, p.room(), how)
}

// use makes a remembered algorithm the choice, if the library agrees that it is one for the product.
func (p *Plan) use(by *choice, kept []byte) bool {
	algo := new(algorithm)
	if len(kept) != binary.Size(algo) {
		return false
	}
	for i := range algo {
		algo[i] = binary.LittleEndian.Uint64(kept[8*i:])
	}
	h, l, result := p.h, p.h.lib, new(heuristic)
	code := l.algoCheck(h.handle, p.desc, p.layouts[1], p.layouts[0], p.layouts[2], p.layouts[2], algo, result)
	if code != 0 || result.state != 0 || result.workspace > p.room() {
		return false
	}
	by.algo, by.bytes, by.made = algo, result.workspace, true
	return true
}

// bytes is the algorithm as it is remembered.
func (a *algorithm) bytes() []byte {
	var b []byte
	for _, word := range a {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}
