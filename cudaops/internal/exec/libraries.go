package exec

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/tandem-train/tandem/cudaops/internal/cublas"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/cudnn"
	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
	"github.com/tandem-train/tandem/internal/ir"
)

// libraries are where products and convolutions go first. product and convolution plan a call for the current step, or report that there is
// none; choose says in which way a product is done.
type libraries interface {
	choose(b *planner, s *ir.Step) (way, error)
	product(b *planner, p matrices) (bool, error)
	convolution(b *planner, c convolution) (bool, error)
}

// none has no library: kernels of our own do everything.
type none struct{}

func (none) choose(b *planner, s *ir.Step) (way, error)      { return b.ways(s, 0)[0], nil }
func (none) product(*planner, matrices) (bool, error)        { return false, nil }
func (none) convolution(*planner, convolution) (bool, error) { return false, nil }

// libraryCall is a task that a library does. bind gives the call, when addresses are known.
type libraryCall struct {
	bind func(address func(place) cuda.Ptr) func() error
}

// toolbox is cuBLASLt and cuDNN on one card, for all its Execs, which run one at a time: handles are dear.
type toolbox struct {
	card      *cuda.Card
	users     int
	products  *cublas.Handle
	convs     *cudnn.Handle
	remembers *choices.Store // which ways of products are the fastest
}

// workspaceBytes are enough for all algorithms of cuBLASLt.
const workspaceBytes = 32 << 20

var toolboxes = struct {
	sync.Mutex
	of map[*cuda.Card]*toolbox
}{of: map[*cuda.Card]*toolbox{}}

// borrow gives the card's toolbox; each borrow is followed by one giveBack.
func borrow(card *cuda.Card) *toolbox {
	toolboxes.Lock()
	defer toolboxes.Unlock()
	t := toolboxes.of[card]
	if t == nil {
		t = &toolbox{card: card}
		toolboxes.of[card] = t
	}
	t.users++
	return t
}

// giveBack closes the handles after the last user.
func (t *toolbox) giveBack() error {
	toolboxes.Lock()
	defer toolboxes.Unlock()
	if t.users--; t.users > 0 {
		return nil
	}
	delete(toolboxes.of, t.card)
	var errs []error
	if t.products != nil {
		errs = append(errs, t.products.Close())
	}
	if t.convs != nil {
		errs = append(errs, t.convs.Close())
	}
	return errors.Join(errs...)
}

// use makes what comes next go into a stream.
func (t *toolbox) use(s cuda.Stream) error {
	if t.products != nil {
		t.products.SetStream(s)
	}
	if t.convs != nil {
		return t.convs.SetStream(s)
	}
	return nil
}

// noCublas and noCudnn say once that a library cannot be used, and how it could.
var noCublas, noCudnn sync.Once

func notice(once *sync.Once, what string, err error) {
	once.Do(func() {
		fmt.Fprintf(os.Stderr, "tandem: %s are done by kernels of our own, which are several times slower: %v\n", what, err)
	})
}

// Prepare opens the libraries that most programs want, which takes a while. Whether they are there is seen when they are used.
func Prepare() {
	_, _ = cublas.Open()
	_, _ = nvrtc.Open()
}

// cublas gives the card's handle, nil where the library cannot be had.
func (t *toolbox) cublas() (*cublas.Handle, error) {
	if t.products != nil {
		return t.products, nil
	}
	lib, err := cublas.Open()
	if err != nil {
		notice(&noCublas, "matrix products", err)
		return nil, nil
	}
	t.products, err = lib.Handle(t.card, 0, workspaceBytes)
	return t.products, err
}

// cudnn gives the card's handle, nil where the library cannot be had.
func (t *toolbox) cudnn() (*cudnn.Handle, error) {
	if t.convs != nil {
		return t.convs, nil
	}
	lib, err := cudnn.Open()
	if err != nil {
		notice(&noCudnn, "convolutions", err)
		return nil, nil
	}
	t.convs, err = lib.Handle(t.card)
	return t.convs, err
}

// vendor is the libraries of an Exec that is being loaded.
type vendor struct {
	e *Exec
	*toolbox
}

// product plans p for cuBLASLt. An operand that it cannot take is copied first.
func (v vendor) product(b *planner, p matrices) (bool, error) {
	if p.k == 0 {
		return false, nil // zeros
	}
	in, out := p.dtype[0], p.dtype[2]
	if p.dtype[1] != in || out != ir.F32 && out != in || p.biased && p.biasType != out {
		return false, nil
	}
	h, err := v.cublas()
	if h == nil || err != nil {
		return false, err
	}
	h.SetStream(v.e.card.Stream)
	q := cublas.Product{Batch: p.batch, M: p.m, N: p.n, K: p.k, Bias: p.biased, Relu: p.relu, TF32: b.program.Target.TF32, In: in, Out: out}
	vector := p.bias
	if p.summed {
		q.BiasGrad, vector = cublas.SumA, p.sums
	}
	matrix := [3]*cublas.Matrix{&q.A, &q.B, &q.C}
	for i, s := range p.strides {
		*matrix[i] = cublas.Matrix{Row: s[0], Col: s[1], Batch: s[2]}
	}
	q.Aligned = !slices.ContainsFunc([]place{p.at[0], p.at[1], p.at[2], vector}, func(at place) bool { return v.e.address(at)%cublas.Alignment != 0 })
	q.Room = int64(b.room())
	plan, err := h.Plan(q)
	if q.Room > 0 && cublas.Unsupported(err) {
		q.Room = 0
		plan, err = h.Plan(q)
	}
	var refused []int
	for range 2 {
		var layout *cublas.LayoutError
		if !errors.As(err, &layout) || layout.Operand == 'C' {
			break
		}
		i := int(layout.Operand - 'A')
		refused = append(refused, i)
		rows, columns := p.extents(i)
		*matrix[i] = cublas.Matrix{Row: columns, Col: 1}
		if p.strides[i][2] != 0 {
			matrix[i].Batch = rows * columns
		}
		plan, err = h.Plan(q)
	}
	if errors.Is(err, cublas.ErrLayout) || cublas.Unsupported(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	v.e.later(plan.Close)
	for _, i := range refused {
		if err := b.copied(&p, i, matrix[i].Row, matrix[i].Col); err != nil {
			return false, err
		}
	}
	var sizes [3]int
	for i := range sizes {
		sizes[i] = p.bytes(i)
	}
	workspace := plan.Workspace
	if vector := v.e.address(vector); !plan.Tuned(v.e.address(p.at[0]), v.e.address(p.at[1]), v.e.address(p.at[2]), vector) {
		if v.e.sizing != nil {
			workspace = v.e.sizing.atMost(plan.Workspace, plan.MostWorkspace)
		}
		err = v.measure(p.at[:], sizes[:], 2, plan.MostWorkspace(), q.Heavy(), func(at []cuda.Ptr, space cuda.Ptr) error {
			plan.SetWorkspace(space)
			return plan.Tune(at[0], at[1], at[2], vector)
		})
		if err != nil {
			return false, err
		}
	}
	return true, b.only(p.operands(), func() error {
		// A workspace of its own, since it may run at the same time as others.
		space := b.temporary(int(workspace()+3) / 4)
		b.add(libraryCall{func(address func(place) cuda.Ptr) func() error {
			x, y, out, bias := address(p.at[0]), address(p.at[1]), address(p.at[2]), address(vector)
			plan.SetWorkspace(address(space))
			return func() error { return plan.Run(x, y, out, bias) }
		}})
		return nil
	})
}

// vectorBytes is what cuDNN reads and writes at once of numbers in halves, without looking whether their place allows it.
const vectorBytes = 16

// convolution plans c for cuDNN.
func (v vendor) convolution(b *planner, c convolution) (bool, error) {
	if c.wt != c.xt || c.yt != c.xt || c.biased && c.biasType != c.xt {
		return false, nil
	}
	if c.xt.Half() && slices.ContainsFunc([]place{c.x, c.w, c.y, c.bias}, func(p place) bool { return p.bytes%vectorBytes != 0 }) {
		return false, nil
	}
	h, err := v.cudnn()
	if h == nil || err != nil {
		return false, err
	}
	if err := h.SetStream(v.e.card.Stream); err != nil {
		return false, err
	}
	q := cudnn.Conv{X: c.xs, W: c.ws, Y: c.ys, Window: c.window, NHWC: c.window.ChannelsLast, Bias: c.biased, Relu: c.relu, TF32: b.program.Target.TF32, Type: c.xt}
	out := 2
	switch c.op.(type) {
	case ir.Conv2dGradX:
		q.Kind, out = cudnn.GradX, 0
	case ir.Conv2dGradW:
		q.Kind, out = cudnn.GradW, 1
	}
	q.Room = int64(b.room())
	plan, err := h.Conv(q)
	if q.Room > 0 && cudnn.Unsupported(err) {
		q.Room = 0
		plan, err = h.Conv(q)
	}
	if cudnn.Unsupported(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	v.e.later(plan.Close)
	needs := plan.Workspace
	if !plan.Tuned() {
		workspace := plan.TuneWorkspace()
		if v.e.sizing != nil {
			needs = v.e.sizing.atMost(plan.Workspace, plan.TuneWorkspace)
		}
		var sizes []int
		for _, shape := range [][4]int{c.xs, c.ws, c.ys} {
			sizes = append(sizes, ir.Of(shape[:]...).Size()*c.xt.Size())
		}
		err = v.measure([]place{c.x, c.w, c.y}, sizes, out, workspace, false, func(at []cuda.Ptr, space cuda.Ptr) error {
			return plan.Tune(at[0], at[1], at[2], v.e.address(c.bias), space, workspace)
		})
		if err != nil {
			return false, err
		}
	}
	space := b.temporary(int(needs()+3) / 4)
	b.add(libraryCall{func(address func(place) cuda.Ptr) func() error {
		x, w, y, bias, space := address(c.x), address(c.w), address(c.y), address(c.bias), address(space)
		return func() error { return plan.Run(x, w, y, bias, space) }
	}})
	return true, nil
}

// measure calls f with the addresses of operands of so many bytes, by which a library finds out what is fastest. A result that would overwrite what
// must stay, and what has no address yet, is replaced by memory that is taken for this alone; so is the workspace. For heavy work operands hold numbers:
// parameters do already, all others become noise, what must stay elsewhere. Where the card has no memory left, and where only sizes are wanted, nothing is
// measured.
func (v vendor) measure(at []place, sizes []int, out int, workspace int64, heavy bool, f func(at []cuda.Ptr, workspace cuda.Ptr) error) (err error) {
	if v.e.sizing != nil {
		return nil
	}
	noisy := func(i int) bool { return heavy && i != out && at[i].base != ir.Params }
	replaced := func(i int) bool {
		return at[i].base == scratch || (i == out || noisy(i)) && at[i].base != ir.Work && at[i].base != spare
	}
	var offsets []int64 // of what is replaced
	total := roundUp(workspace)
	for i, p := range at {
		offsets = append(offsets, total)
		if replaced(i) {
			// As far from a boundary as the place itself.
			total += roundUp(int64(sizes[i] + p.bytes%boundary))
		}
	}
	block, err := v.e.card.MemAlloc(max(total, boundary))
	if err != nil {
		return nil // the library's guess will do
	}
	v.e.tried = true
	defer func() { err = errors.Join(err, v.e.card.MemFree(block)) }()
	// What has been started before may still use the program's memory.
	if err := v.e.card.StreamSynchronize(v.e.shared); err != nil {
		return err
	}
	addresses := make([]cuda.Ptr, len(at))
	for i, p := range at {
		addresses[i] = v.e.address(p)
		if replaced(i) {
			addresses[i] = block + cuda.Ptr(offsets[i]) + cuda.Ptr(p.bytes%boundary)
		}
		if noisy(i) {
			if err := v.e.noise(addresses[i], sizes[i]); err != nil {
				return err
			}
		}
	}
	return f(addresses, block)
}
