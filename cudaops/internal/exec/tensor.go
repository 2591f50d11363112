package exec

import (
	"fmt"
	"math"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

// tile is a way to cut a product for the tensor cores; see tensor.cuh.
type tile struct {
	m, n  int // results of a block
	parts int // of k, blocks of a cluster
}

func (t tile) String() string { return fmt.Sprintf("tile %dx%d, k in %d", t.m, t.n, t.parts) }

// kernelVersion counts changes of tensor.cuh after which other tiles may be the fastest.
const kernelVersion = 2

// tiles are the cuts that are worth trying for a product: small tiles, by which many blocks share a small product, and parts of k where those are
// too few. For large products the library is twice as fast, and always was on an H200.
func tiles(batch, m, n, k int) (list []tile) {
	const (
		small = 1 << 28 // multiplications
		large = 132     // multiprocessors of a large card
		most  = 8       // blocks that every card lets be a cluster
		worth = 64      // of k, for a part
	)
	if batch*m*n*k > small {
		return nil
	}
	for _, t := range []tile{{m: 64, n: 32}, {m: 64, n: 64}, {m: 32, n: 32}, {m: 64, n: 16}, {m: 16, n: 64}} {
		mostlyEmpty := func(size, extent int) bool { return size > 16 && size/2 >= extent }
		if mostlyEmpty(t.m, m) || mostlyEmpty(t.n, n) || t.m == 16 && m > 16 || t.n == 16 && n > 16 {
			continue
		}
		grid := batch * blocks(m, t.m) * blocks(n, t.n)
		t.parts = max(1, min(large/grid, most, k/worth))
		list = append(list, t)
	}
	return list
}

// float32s reports whether all that a product works on is float32.
func (p matrices) float32s() bool {
	return p.dtype == [3]ir.DType{} && (!p.biased || p.biasType == ir.F32) && (!p.masked || p.maskType == ir.F32)
}

// fits reports whether the kernel takes a product: it counts rows and columns with 32 bits.
func (p matrices) fits() bool {
	const most = math.MaxInt32 - 1<<10
	return p.k > 0 && p.m <= most && p.n <= most && p.k <= most && p.batch <= maxPlanes && (p.batch == 1 || !p.masked && !p.summed) && p.strides[2][1] == 1
}

// even reports whether four neighbours of an operand may always be copied as one.
func (p matrices) even(i int) bool {
	s := p.strides[i]
	along, other := s[0], s[1]
	if i == 0 && s[1] == 1 || i > 0 && s[0] != 1 {
		along, other = s[1], s[0]
	}
	return along == 1 && other%lanes == 0 && (p.batch == 1 || s[2]%lanes == 0) && p.at[i].even(wordBytes)
}

// tensor launches a product with all of its epilogue on the tensor cores, by small tiles; see tensor.cuh.
func (b *planner) tensor(p matrices, t tile) {
	const step, most = 32, 5 // of k, and stages of copies
	stages := blocks(blocks(p.k, t.parts), step)
	depth := min(most, stages+1)
	panel := func(size, inner int) int {
		if inner == 1 { // k is next to each other
			return size * (step + 4)
		}
		return step * (size + 8)
	}
	shared := min(depth, stages) * (panel(t.m, p.strides[0][1]) + panel(t.n, p.strides[1][0]))
	shared = max(shared, t.m*(t.n+4)+threads) // and its Results
	params, args := []string{"const float *x", "const float *y"}, []place{p.at[0], p.at[1]}
	names := map[string]string{"bias": "nullptr", "mask": "nullptr", "sums": "nullptr"}
	optional := func(has bool, kind, name string, at place) {
		if has {
			params, args = append(params, kind+name), append(args, at)
			names[name] = name
		}
	}
	optional(p.biased, "const float *", "bias", p.bias)
	optional(p.masked, "const float *", "mask", p.mask)
	optional(true, "float *", "out", p.at[2])
	optional(p.summed, "float *", "sums", p.sums)
	head := waiting(params...)
	if t.parts > 1 {
		head = strings.Replace(head, "@(", fmt.Sprintf("__cluster_dims__(%d, 1, 1) @(", t.parts), 1)
	}
	text := fmt.Sprintf("%s    Tile<%s, %d, %d, %d, %d>::run({x, y, %s, %s, out, %s}, blockMemory());\n}\n",
		head, p.product(), t.m, t.n, t.parts, depth, names["bias"], names["mask"], names["sums"])
	b.add(launch{
		kernel: b.kernel("tensor", text, "tensor"), args: args, shared: shared * wordBytes,
		blocks: blocks(p.m, t.m) * blocks(p.n, t.n) * t.parts, planes: p.batch,
	})
}

// product is the Product of tensor.cuh.
func (p matrices) product() string {
	a, c, out := p.strides[0], p.strides[1], p.strides[2]
	return fmt.Sprintf("Product<%d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %t, %t, %t, %t, %t, %t, %t, %t>", p.batch, p.m, p.n, p.k,
		a[0], a[1], a[2], c[0], c[1], c[2], out[0], out[2], p.maskStrides[0], p.maskStrides[1],
		p.even(0), p.even(1), p.even(2) && p.n%lanes == 0, p.maskStrides[1] == 1 && p.maskStrides[0]%lanes == 0 && p.mask.even(wordBytes) && p.n%lanes == 0, p.biased, p.relu, p.masked, p.summed)
}
