package nn

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/nn/op"
)

// EmbeddingLayer takes rows of a table: indices int32 [N, ...] -> [N, ..., Dim].
type EmbeddingLayer struct {
	Num, Dim int
	Weight   *Parameter // [Num, Dim], standard normal, the padding row 0

	padding int // -1 for none
	err     error
}

// EmbeddingOption changes an [EmbeddingLayer].
type EmbeddingOption interface{ embedding(*EmbeddingLayer) }

// Embedding returns a table of n rows of dim elements.
func Embedding(n, dim int, opts ...EmbeddingOption) *EmbeddingLayer {
	l := &EmbeddingLayer{Num: n, Dim: dim, padding: -1}
	for _, o := range opts {
		o.embedding(l)
	}
	l.Weight = NewParameter(func(dst []float32, seed uint64) {
		Normal(0, 1)(dst, seed)
		if l.padding >= 0 && l.padding < n {
			clear(dst[l.padding*dim : (l.padding+1)*dim])
		}
	}, n, dim)
	return l
}

// PaddingIdxOption is what [PaddingIdx] returns.
type PaddingIdxOption int

// PaddingIdx is the index of a row that starts at 0 and is not trained; from the end if negative.
func PaddingIdx(i int) PaddingIdxOption { return PaddingIdxOption(i) }

func (i PaddingIdxOption) embedding(l *EmbeddingLayer) {
	l.padding = int(i)
	if i < 0 {
		l.padding += l.Num
	}
	if l.padding < 0 || l.padding >= l.Num {
		l.err = fmt.Errorf("padding index %d is outside the %d rows", int(i), l.Num)
	}
}

// String is "Embedding 1000x64".
func (l *EmbeddingLayer) String() string { return fmt.Sprintf("Embedding %dx%d", l.Num, l.Dim) }

// Forward implements [Module].
func (l *EmbeddingLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	switch {
	case l.Num < 1 || l.Dim < 1:
		return nil, g.errorf(l, "sizes must be at least 1")
	case l.err != nil:
		return nil, g.errorf(l, "%w", l.err)
	case x.Dtype() != tensor.Int32:
		return nil, g.errorf(l, "input is %v %s: wants int32 indices [N, ...]", x.Dtype(), dims(x.Shape()))
	}
	y, err := op.Embedding(g.Param(l.Weight), x, l.padding)
	return g.leave(l, y, err)
}
