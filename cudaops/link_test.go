package cudaops_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/exec"
	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
)

// rank is one of several on cards of this process.
type rank struct {
	dev   ir.Device
	peers ir.Peers
	group comm.Comm
	link  ir.Link
}

// most is the size of a collective that NCCL is thought to be best for.
const most = 1 << 30

// onRanks makes a rank a card, links them, and runs f for each in a goroutine of its own. It returns the ranks' errors.
func onRanks(t *testing.T, cards []int, f func(r *rank) error) []error {
	t.Helper()
	group, err := comm.NewLocal(len(cards))
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(cards))
	var all sync.WaitGroup
	for i, card := range cards {
		all.Go(func() {
			errs[i] = func() error {
				dev, err := cudaops.Open(card, 1)
				if err != nil {
					return err
				}
				peers, err := comm.ForProgram(group[i], len(cards))
				if err != nil {
					return err
				}
				r := &rank{dev: dev, peers: peers, group: group[i]}
				if r.link, err = dev.(ir.Joiner).Join(context.Background(), peers, most); err != nil {
					return errors.Join(err, dev.Close())
				}
				err = f(r)
				if r.link != nil { // a test may have ended it
					err = errors.Join(err, r.link.Close())
				}
				return errors.Join(err, dev.Close())
			}()
		})
	}
	all.Wait()
	return errs
}

// exchanger is a program that does collectives on its gradients, of which each has n elements.
func exchanger(t *testing.T, n int, list ...ir.Collective) *ir.Program {
	t.Helper()
	var size [ir.NumRegions]int
	size[ir.Grads] = n * len(list)
	var parts []ir.Part
	for i, c := range list {
		parts = append(parts, ir.Part{Collective: &c, On: &ir.Slot{Region: ir.Grads, Name: fmt.Sprint(i), Offset: i * n, Shape: ir.Of(n)}})
	}
	p, err := ir.Compile("exchange", size, ir.Target{}, parts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// exchange runs a program of gradients on a rank and leaves them in x.
func (r *rank) exchange(p *ir.Program, x []float32) (err error) {
	m, err := r.dev.Alloc(int64(4 * len(x)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Free()) }()
	if err := m.Write(0, ir.Bytes(x)); err != nil {
		return err
	}
	e, err := r.dev.Load(p, [ir.NumRegions]ir.DeviceMemory{ir.Grads: m})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := e.Run(context.Background(), &ir.Runtime{Comm: r.peers}); err != nil {
		return err
	}
	return m.Read(0, ir.Bytes(x))
}

// eachWay runs a test of so many cards that are linked in one way, and in the other.
func eachWay(t *testing.T, cards int, f func(t *testing.T)) {
	for name, c := range map[string]fakecuda.Config{
		"nccl":   {NCCL: true, Env: map[string]string{cudaops.LinkVariable: "nccl", exec.GraphVariable: "off"}},
		"direct": {Kernels: true, Env: map[string]string{cudaops.LinkVariable: "direct"}},
	} {
		c.Cards = slices.Repeat([]int64{1024}, cards)
		t.Run(name, func(t *testing.T) {
			if fakecuda.In(t, c) {
				f(t)
			}
		})
	}
}

// TestLinkCollectives: every kind of collective, one by one and joined, with shares of the same size and of different ones.
func TestLinkCollectives(t *testing.T) { eachWay(t, 3, linkCollectives) }

func linkCollectives(t *testing.T) {
	const world = 3
	list := []ir.Collective{
		{Kind: ir.AllReduce}, {Kind: ir.ReduceTo, Root: 1}, {Kind: ir.BroadcastFrom, Root: 2}, {Kind: ir.ReduceScatter}, {Kind: ir.AllGather}, {Kind: ir.AllReduce, ActiveOnly: true},
	}
	for _, n := range []int{6, 7, 1} {
		for _, joined := range []bool{false, true} {
			for i := range list {
				list[i].Joined = joined && i > 0
			}
			p := exchanger(t, n, list...)
			value := func(r, i int) float32 { return float32((r + 1) * (i + 1)) }
			for r, err := range onRanks(t, []int{0, 1, 2}, func(r *rank) error {
				me := r.peers.Rank()
				x := make([]float32, n*len(list))
				for i := range x {
					x[i] = value(me, i)
				}
				if err := r.exchange(p, x); err != nil {
					return err
				}
				for k, c := range list {
					for e := range n {
						i := k*n + e
						want, sum := value(me, i), value(0, i)+value(1, i)+value(2, i)
						lo, hi := ir.ShareOf(n, me, world)
						switch {
						case c.Kind == ir.AllReduce, c.Kind == ir.ReduceTo && me == c.Root:
							want = sum
						case c.Kind == ir.BroadcastFrom:
							want = value(c.Root, i)
						case c.Kind == ir.AllGather:
							want = value(e/((n+world-1)/world), i)
						case c.Kind == ir.ReduceScatter && (e < lo || e >= hi):
							continue // undefined
						case c.Kind == ir.ReduceScatter:
							want = sum
						}
						if x[i] != want {
							return fmt.Errorf("element %d of %s of %d is %v, want %v", e, c.Kind, n, x[i], want)
						}
					}
				}
				return nil
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		}
	}
}

// TestUnlinked: where cards can't be linked all ranks hear the same reason.
func TestUnlinked(t *testing.T) {
	two := []int64{1024, 1024}
	for name, c := range map[string]struct {
		fake  fakecuda.Config
		cards []int
		rank  int // -1: any
		why   string
	}{
		"no library":  {fakecuda.Config{Cards: two}, []int{0, 1}, 0, "TANDEM_CUDA_PATH"},
		"same card":   {fakecuda.Config{Cards: two, NCCL: true}, []int{0, 1, 0}, 2, "shares its card"},
		"wrong bytes": {fakecuda.Config{Cards: two, NCCL: true, Env: map[string]string{"FAKE_NCCL_CORRUPT": "1"}}, []int{0, 1}, 0, "NCCL_P2P_DISABLE"},
		"no test of one": {
			fakecuda.Config{Cards: two, NCCL: true, Env: map[string]string{cudaops.LinkVariable: "nccl"}, Fail: []fakecuda.Failure{{Func: "cuMemHostAlloc", Code: 2, From: 2}}},
			[]int{0, 1}, -1, "can't test the exchange",
		},
		"no test": {
			fakecuda.Config{Cards: two, NCCL: true, Env: map[string]string{cudaops.LinkVariable: "nccl"}, Fail: []fakecuda.Failure{{Func: "cuMemHostAlloc", Code: 2, From: 1}}},
			[]int{0, 1}, 0, "can't test the exchange",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !fakecuda.In(t, c.fake) {
				return
			}
			for r, err := range onRanks(t, c.cards, func(*rank) error { return nil }) {
				var u *ir.UnlinkedError
				if !errors.As(err, &u) || c.rank >= 0 && u.Rank != c.rank || !strings.Contains(u.Error(), c.why) {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// TestLinkNotes: three cards that are linked in one way only say what is missing of the other, in the same words on all ranks.
func TestLinkNotes(t *testing.T) {
	both := fakecuda.Config{Cards: []int64{1024, 1024, 1024}, Kernels: true, NCCL: true}
	with := func(change func(*fakecuda.Config)) fakecuda.Config {
		c := both
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		fake fakecuda.Config
		note string
	}{
		"both":                   {both, ""},
		"no NCCL":                {with(func(c *fakecuda.Config) { c.NCCL = false }), "by NCCL: rank 0: NCCL (libnccl.so.2) is not found"},
		"two cards without NCCL": {with(func(c *fakecuda.Config) { c.Cards, c.NCCL = c.Cards[:2], false }), ""},
		"no access": {with(func(c *fakecuda.Config) {
			c.Fail = []fakecuda.Failure{{Func: "cuCtxEnablePeerAccess", Code: 217, From: 1}}
		}), "over the cards' memory: rank 0: its card does not reach"},
		"no kernel": {with(func(c *fakecuda.Config) { c.Fail = []fakecuda.Failure{{Func: "cuIpcGetMemHandle", Code: 801, From: 3}} }), "can't take part"},
		"NCCL off by its bytes": {with(func(c *fakecuda.Config) {
			c.Env = map[string]string{"FAKE_NCCL_CORRUPT": "1"}
		}), "NCCL_P2P_DISABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			if !fakecuda.In(t, c.fake) {
				return
			}
			cards := []int{0, 1, 2}[:len(c.fake.Cards)]
			notes := make([]string, len(cards))
			for r, err := range onRanks(t, cards, func(r *rank) error {
				notes[r.peers.Rank()] = r.link.Note()
				return nil
			}) {
				if err != nil || !strings.Contains(notes[r], c.note) || (notes[r] == "") != (c.note == "") {
					t.Errorf("rank %d: %v, and the note is %q", r, err, notes[r])
				}
			}
		})
	}
}

// TestLinkBreaks: a rank that is gone after the ranks have met, and before its card has done its part, does not leave the others waiting.
func TestLinkBreaks(t *testing.T) { eachWay(t, 2, linkBreaks) }

func linkBreaks(t *testing.T) {
	p := exchanger(t, 4, ir.Collective{})
	gone := errors.New("the process is gone")
	errs := onRanks(t, []int{0, 1}, func(r *rank) error {
		if r.peers.Rank() == 0 {
			return errors.Join(r.exchange(p, make([]float32, 4)), r.link.Err())
		}
		err := r.peers.Collective(context.Background(), ir.Collective{}, new(exec.Ballot)[:])
		r.group.Abort(gone)
		return err
	})
	var broken *comm.BrokenError
	if !errors.Is(errs[0], gone) || !errors.As(errs[0], &broken) || !strings.Contains(errs[0].Error(), "not to be used") {
		t.Errorf("rank 0: %v", errs[0])
	}
	if errs[1] != nil {
		t.Errorf("rank 1: %v", errs[1])
	}
}

// TestLinkOutlivesItsGroup: a rank that leaves when all have done their part disturbs nobody.
func TestLinkOutlivesItsGroup(t *testing.T) { eachWay(t, 2, linkOutlivesItsGroup) }

func linkOutlivesItsGroup(t *testing.T) {
	p := exchanger(t, 2, ir.Collective{})
	for r, err := range onRanks(t, []int{0, 1}, func(r *rank) error {
		x := []float32{1, 2}
		if err := r.exchange(p, x); err != nil {
			return err
		}
		r.group.Abort(comm.ErrClosed)
		if !slices.Equal(x, []float32{2, 4}) {
			return fmt.Errorf("got %v", x)
		}
		return r.link.Err()
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// sevens is a link to cards with which the sum of a bucket, of so many bytes, is always 7, of the next one 8, and so on.
type sevens struct {
	card   *cuda.Card
	first  cuda.Ptr
	bucket int
	met    exec.Meetings
}

func (l *sevens) Put(s cuda.Stream, list []exec.Collective, _ bool) error {
	for _, c := range list {
		sum := 7 + float32(int(c.At-l.first)/l.bucket)
		if err := l.card.MemsetD32(c.At, math.Float32bits(sum), c.N, s); err != nil {
			return err
		}
	}
	return nil
}

func (l *sevens) TakesTurns([]exec.Collective) bool { return false }
func (l *sevens) Begin()                            {}
func (l *sevens) End(cuda.Stream) error             { return nil }
func (l *sevens) Err() error                        { return nil }
func (l *sevens) Meetings() *exec.Meetings          { return &l.met }

// TestLinkedContest: cards that exchange come to one arrangement of their programs' graphs, also where one has loaded its program again
// after some runs; then no run is timed any more.
func TestLinkedContest(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Kernels: true, Env: map[string]string{"FAKE_CUDA_MAJOR": "9"}}) {
		return
	}
	const n, each, all = 12, 10, 200
	p := exchanger(t, n, ir.Collective{Kind: ir.AllReduce})
	err := errors.Join(onRanks(t, []int{0, 1}, func(r *rank) (err error) {
		m, err := r.dev.Alloc(4 * n)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Free()) }()
		load := func() (ir.Executable, error) { return r.dev.Load(p, [ir.NumRegions]ir.DeviceMemory{ir.Grads: m}) }
		e, err := load()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close()) }()
		for run := range all {
			if run == each && r.peers.Rank() == 1 {
				if err := e.Close(); err != nil {
					return err
				}
				if e, err = load(); err != nil {
					return err
				}
			}
			x := slices.Repeat([]float32{float32(run + r.peers.Rank())}, n)
			if err := m.Write(0, ir.Bytes(x)); err != nil {
				return err
			}
			if err := e.Run(context.Background(), &ir.Runtime{Comm: r.peers}); err != nil {
				return err
			}
			if err := m.Read(0, ir.Bytes(x)); err != nil {
				return err
			}
			if want := float32(2*run + 1); x[n-1] != want {
				return fmt.Errorf("run %d: the sum is %v, want %v", run, x[n-1], want)
			}
		}
		return nil
	})...)
	if err != nil {
		t.Error(err)
	}
	timed := fakecuda.Count(fakecuda.Calls(t), "cuEventElapsedTime")
	if timed == 0 || timed > 3*all/2 {
		t.Errorf("of %d runs of each card %d were timed", all, timed)
	}
}

// TestLinkInGraphs: within a captured graph, whose tasks the fake does in any order that the edges allow, a collective comes after what it
// sums and before what needs the sum.
func TestLinkInGraphs(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024}, Kernels: true}) {
		return
	}
	api, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}
	card, err := api.OpenCard(0)
	if err != nil {
		t.Fatal(err)
	}
	const n, buckets = 40, 3
	var size [ir.NumRegions]int
	size[ir.Params], size[ir.Grads] = n*buckets, n*buckets
	g := &ir.Graph{}
	parts := []ir.Part{{Graph: g}}
	v := g.Read(&ir.Slot{Region: ir.Input, Name: "x", Shape: ir.Of(n)})
	for b := range buckets { // as backward finishes one after the other
		v = g.Map(ir.Tanh, g.Minus(v, g.Reduce(ir.Sum, v, 0)))
		on := &ir.Slot{Region: ir.Grads, Name: fmt.Sprint("bucket ", b), Offset: b * n, Shape: ir.Of(n)}
		g.Store(on, v)
		parts = append(parts, ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce}, On: on})
	}
	update := &ir.Graph{}
	w := &ir.Slot{Region: ir.Params, Name: "w", Shape: ir.Of(n * buckets)}
	update.Store(w, update.Plus(update.Read(w), update.Read(&ir.Slot{Region: ir.Grads, Name: "all", Shape: ir.Of(n * buckets)})))
	p, err := ir.Compile("buckets", size, ir.Target{}, append(parts, ir.Part{Graph: update})...)
	if err != nil {
		t.Fatal(err)
	}
	err = card.Do(func() error {
		var mem [ir.NumRegions]cuda.Ptr
		for r := range mem {
			if bytes := p.Bytes(ir.Region(r)); bytes > 0 {
				if mem[r], err = card.MemAlloc(bytes); err != nil {
					return err
				}
				if err := card.MemsetD8(mem[r], 0, int(bytes), card.Stream); err != nil {
					return err
				}
			}
		}
		e, err := exec.Load(card, p, mem, &sevens{card: card, first: mem[ir.Grads], bucket: 4 * n})
		if err != nil {
			return err
		}
		group, err := comm.NewLocal(1)
		if err != nil {
			return err
		}
		peers, err := comm.ForProgram(group[0], 1)
		if err != nil {
			return err
		}
		const runs = 20
		for range runs {
			if err := e.Run(context.Background(), &ir.Runtime{Comm: peers}); err != nil {
				return err
			}
		}
		pinned, err := card.MemHostAlloc(4 * n * buckets)
		if err != nil {
			return err
		}
		if err := errors.Join(card.MemcpyDtoH(pinned, 0, mem[ir.Params], 4*n*buckets, card.Stream), card.StreamSynchronize(card.Stream)); err != nil {
			return err
		}
		for i, got := range ir.Words[float32](pinned.Bytes()) {
			if want := float32(runs * (7 + i/n)); got != want {
				return fmt.Errorf("parameter %d is %v, want %v", i, got, want)
			}
		}
		return e.Close()
	})
	if err != nil {
		t.Error(err)
	}
	if n := fakecuda.Count(fakecuda.Calls(t), "cuGraphLaunch"); n == 0 {
		t.Error("no graph was launched")
	}
}

// TestLinkedIndexErrors: a card that finds an index out of range between two collectives does not keep the others waiting for it in the second one.
func TestLinkedIndexErrors(t *testing.T) {
	if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Kernels: true}) {
		return
	}
	var size [ir.NumRegions]int
	size[ir.Params], size[ir.Grads] = 3*4, 3+2*4
	first := &ir.Slot{Region: ir.Grads, Name: "first", Shape: ir.Of(3)}
	rows := &ir.Slot{Region: ir.Grads, Name: "rows", Offset: 3, Shape: ir.Of(2, 4)}
	index := &ir.Slot{Region: ir.Input, Name: "index", Shape: ir.Of(2), DType: ir.I32}
	g := &ir.Graph{}
	g.Store(rows, g.Add(ir.Gather{}, nil, g.Read(&ir.Slot{Region: ir.Params, Name: "table", Shape: ir.Of(3, 4)}), g.Read(index)))
	sum := func(s *ir.Slot) ir.Part { return ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce}, On: s} }
	p, err := ir.Compile("lookup", size, ir.Target{}, sum(first), ir.Part{Graph: g}, sum(rows))
	if err != nil {
		t.Fatal(err)
	}
	errs := onRanks(t, []int{0, 1}, func(r *rank) (err error) {
		var mem [ir.NumRegions]ir.DeviceMemory
		for region, n := range p.Size {
			if n == 0 {
				continue
			}
			m, err := r.dev.Alloc(int64(4 * n))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, m.Free()) }()
			if err := m.Clear(); err != nil {
				return err
			}
			mem[region] = m
		}
		e, err := r.dev.Load(p, mem)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close()) }()
		for run := range int32(4) { // the last with an index out of range, on rank 1
			if err := mem[ir.Input].Write(0, ir.Bytes([]int32{1, run * int32(r.peers.Rank())})); err != nil {
				return err
			}
			if err := e.Run(context.Background(), &ir.Runtime{Comm: r.peers}); err != nil {
				r.group.Abort(err)
				return errors.Join(err, r.link.Err())
			}
		}
		return errors.New("no error")
	})
	var broken *comm.BrokenError
	if !errors.As(errs[0], &broken) || broken.Rank != 1 || strings.Contains(errs[0].Error(), "exchange was ended") {
		t.Errorf("rank 0: %v", errs[0])
	}
	if errs[1] == nil || !strings.Contains(errs[1].Error(), "row 3 at index 1 is outside") {
		t.Errorf("rank 1: %v", errs[1])
	}
}

// TestLoadAfterLink: programs that are loaded when the cards' link has ended exchange by way of the host, as before it.
func TestLoadAfterLink(t *testing.T) { eachWay(t, 2, loadAfterLink) }

func loadAfterLink(t *testing.T) {
	p := exchanger(t, 3, ir.Collective{})
	for r, err := range onRanks(t, []int{0, 1}, func(r *rank) error {
		if err := r.link.Close(); err != nil {
			return err
		}
		x := []float32{1, 2, 3}
		if err := r.exchange(p, x); err != nil {
			return err
		}
		if !slices.Equal(x, []float32{2, 4, 6}) {
			return fmt.Errorf("got %v", x)
		}
		var err error
		r.link, err = r.dev.(ir.Joiner).Join(context.Background(), r.peers, most)
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestLinkOnFullCards: cards on which the process may hold no more are linked again all the same, as after a step that was broken off.
func TestLinkOnFullCards(t *testing.T) { eachWay(t, 2, linkOnFullCards) }

func linkOnFullCards(t *testing.T) {
	for r, err := range onRanks(t, []int{0, 1}, func(r *rank) error {
		if err := errors.Join(r.link.Close(), cudaops.EmptyCache(r.dev.ID()), cudaops.SetDeviceMemoryLimit(1, r.dev.ID())); err != nil {
			return err
		}
		var err error
		if r.link, err = r.dev.(ir.Joiner).Join(context.Background(), r.peers, most); err == nil && r.link.Note() != "" {
			err = errors.New(r.link.Note())
		}
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestDirectWayThatFailsKeepsNothing: cards that can't reach each other's memory have theirs back when they are linked in another way.
func TestDirectWayThatFailsKeepsNothing(t *testing.T) {
	const context = 100
	for _, failing := range []fakecuda.Failure{{Func: "cuCtxEnablePeerAccess", Code: 217, From: 1}, {Func: "cuIpcGetMemHandle", Code: 801, From: 2}} {
		t.Run(failing.Func, func(t *testing.T) {
			if !fakecuda.In(t, fakecuda.Config{Cards: []int64{1024, 1024}, Context: context, NCCL: true, Kernels: true, Fail: []fakecuda.Failure{failing}}) {
				return
			}
			for r, err := range onRanks(t, []int{0, 1}, func(r *rank) error {
				available, total, err := cudaops.MemGetInfo(r.dev.ID())
				if used := total - available; err == nil && used != context*mib {
					err = fmt.Errorf("%d MiB are used, of which %d are the context", used/mib, context)
				}
				return err
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}
