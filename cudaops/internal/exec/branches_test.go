package exec

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// randomPlan is a plan of n steps on few elements of two regions, with views of all kinds, scratch and guards; each step has a task or two.
func randomPlan(rng *rand.Rand, n int) (*plan, []task) {
	operand := func() ir.Operand {
		o := ir.Operand{Region: []ir.Region{ir.Params, ir.Buffers}[rng.IntN(2)], Offset: rng.IntN(60)}
		for range rng.IntN(3) {
			o.Shape, o.Strides = append(o.Shape, rng.IntN(5)), append(o.Strides, rng.IntN(7))
		}
		return o
	}
	p := &plan{program: &ir.Program{}, own: make([]span, n)}
	tasks := []task{{do: launch{}, on: []span{{control, 0, 1 << 10, true}}}}
	for i := range n {
		s := ir.Step{Op: ir.Copy{}, Out: []ir.Operand{operand()}}
		for range rng.IntN(3) {
			s.In = append(s.In, operand())
		}
		p.program.Steps = append(p.program.Steps, s)
		var l launch
		switch rng.IntN(5) {
		case 0:
			at := rng.IntN(20)
			p.own[i] = span{scratch, at, at + 1 + rng.IntN(5), true}
		case 1:
			l.args = []place{{control, 0}}
		case 2:
			l.args = []place{guardPlace(len(p.guards))}
			p.guards = append(p.guards, guard{step: i})
		}
		t := task{step: i, do: l}
		if i > 1 && rng.IntN(4) == 0 { // two steps' work, one of which is out of order
			t.more = []int{rng.IntN(i - 1)}
		}
		tasks = append(tasks, t)
	}
	return p, append(tasks, task{step: n - 1, do: launch{}, on: []span{{control, runtimeBytes, 1 << 10, false}}})
}

// paths tells which tasks come after which, given those that each comes right after.
func paths(before func(i int) []int, n int) [][]bool {
	after := make([][]bool, n)
	for i := range n {
		after[i] = make([]bool, n)
		for _, d := range before(i) {
			after[i][d] = true
			for k, is := range after[d] {
				after[i][k] = after[i][k] || is
			}
		}
	}
	return after
}

// inTurn is paths by turns; without leaves one wait out, of those of task i.
func inTurn(turns []turn, i, without int) [][]bool {
	return paths(func(k int) []int {
		list := slices.Clone(turns[k].waits)
		if k == i {
			list = slices.Delete(list, without, without+1)
		}
		for d := k - 1; d >= 0; d-- {
			if turns[d].branch == turns[k].branch {
				return append(list, d)
			}
		}
		return list
	}, len(turns))
}

// Two tasks that conflict keep their order, whatever the number of branches, and no wait can be spared.
func TestBranchesKeepTheOrderOfConflicts(t *testing.T) {
	conflicts, free := 0, 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, tasks := randomPlan(rng, 2+rng.IntN(30))
		after := p.dependencies(tasks)
		direct := paths(func(i int) []int { return after[i] }, len(tasks))
		for n := 1; n <= maxBranches; n++ {
			turns := branches(after, n, func(int) int { return 0 })
			all := inTurn(turns, -1, 0)
			for i, x := range tasks {
				for d, y := range tasks[:i] {
					conflict := slices.ContainsFunc(p.spans(x), func(s span) bool { return slices.ContainsFunc(p.spans(y), s.conflict) })
					switch {
					case conflict && !direct[i][d]:
						t.Fatalf("seed %d: task %d does not depend on %d", seed, i, d)
					case conflict && !all[i][d]:
						t.Fatalf("seed %d, %d branches: task %d may come before %d", seed, n, i, d)
					case conflict:
						conflicts++
					case n == maxBranches && !all[i][d]:
						free++
					}
				}
				for k, d := range turns[i].waits {
					if !turns[d].awaited || inTurn(turns, i, k)[i][d] {
						t.Fatalf("seed %d, %d branches: task %d waits for %d without need, or that does not know", seed, n, i, d)
					}
				}
				if turns[i].branch >= n {
					t.Fatalf("%d branches: task %d is in branch %d", n, i, turns[i].branch)
				}
			}
		}
	}
	if conflicts == 0 || free == 0 {
		t.Errorf("%d conflicts, %d pairs that are free", conflicts, free)
	}
}

func TestBranches(t *testing.T) {
	for _, c := range []struct {
		name  string
		after [][]int
		n     int
		want  []turn
		apart int // a task
	}{
		{"a chain", [][]int{{}, {0}, {0, 1}}, 4, []turn{{}, {}, {}}, -1},
		{"no branches", [][]int{{}, {}, {0}}, 1, []turn{{}, {}, {}}, -1},
		{"a diamond", [][]int{{}, {0}, {0}, {1, 2}}, 4, []turn{{awaited: true}, {awaited: true}, {branch: 1, waits: []int{0}}, {branch: 1, waits: []int{1}}}, -1},
		{"more than there are branches", [][]int{{}, {}, {}}, 2, []turn{{}, {branch: 1}, {}}, -1},
		{"what follows from another wait", [][]int{{}, {0}, {}, {2, 0, 1}}, 4, []turn{{}, {awaited: true}, {branch: 1}, {branch: 1, waits: []int{1}}}, -1},
		{"one apart", [][]int{{}, {0}, {0}, {1, 2}}, 2, []turn{{awaited: true}, {branch: together, waits: []int{0}, awaited: true}, {}, {waits: []int{1}}}, 1},
		{"nothing is apart in a chain", [][]int{{}, {0}, {0}}, 1, []turn{{}, {}, {}}, 1},
	} {
		for _, list := range c.after {
			slices.Sort(list)
		}
		apart := func(task int) int {
			if task == c.apart {
				return together
			}
			return 0
		}
		if got := branches(c.after, c.n, apart); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

// The longest path has a branch for itself, in which others would come before its tasks.
func TestLongestPath(t *testing.T) {
	after := [][]int{{}, {0}, {0}, {2}, {}, {1, 3}, {5}, {0, 5}}
	path := longestPath(after)
	if want := []bool{true, false, true, true, false, true, false, true}; !slices.Equal(path, want) {
		t.Errorf("the path is %v, want %v", path, want)
	}
	turns := branches(after, maxBranches, func(i int) int {
		if path[i] {
			return onPath
		}
		return 0
	})
	for i, turn := range turns {
		if path[i] != (turn.branch == 0) || turn.branch >= maxBranches {
			t.Errorf("task %d is in branch %d, on the path: %v", i, turn.branch, path[i])
		}
	}
	if got := longestPath(nil); len(got) != 0 {
		t.Errorf("the path of nothing: %v", got)
	}
}

// Steps have scratch of their own, until there is too much of it.
func TestScratchApart(t *testing.T) {
	b := &planner{plan: &plan{own: make([]span, 6)}}
	var got []int
	for i, sizes := range [][]int{{400}, {}, {256, 4}, {apart - 512}, {40}, {2 * apart, 256}} {
		b.step, b.fresh = i, true
		for _, n := range sizes {
			got = append(got, b.temporary(n/wordBytes).bytes)
		}
	}
	if want := []int{0, 512, 768, 0, apart - 512, 0, 2 * apart}; !slices.Equal(got, want) {
		t.Errorf("places %v, want %v", got, want)
	}
	want := []span{{scratch, 0, 512, true}, {}, {scratch, 512, 1024, true}, {scratch, 0, apart - 512, true}, {scratch, apart - 512, apart - 256, true}, {scratch, 0, 2*apart + 256, true}}
	if !slices.Equal(b.own, want) {
		t.Errorf("steps have %v, want %v", b.own, want)
	}
	if b.scratch != 2*apart+256 {
		t.Errorf("%d bytes", b.scratch)
	}
}

// A program with much that is independent has the same bits in every way to run.
func TestWaysToRun(t *testing.T) {
	var first []float32
	for _, way := range []struct{ graph, branches string }{{"off", "on"}, {"on", "off"}, {"on", "on"}, {"on", ""}} {
		t.Setenv(GraphVariable, way.graph)
		t.Setenv(BranchesVariable, way.branches)
		s := newSketch(t)
		x, w := s.slot(ir.Input, ir.F32, 40, 30), s.slot(ir.Params, ir.F32, 30, 30)
		out := s.slot(ir.Output, ir.F32, 40, 30)
		v := s.Read(x)
		for range 3 {
			var sum *ir.Value
			for k := range 5 {
				part := s.Map(ir.Tanh, s.MatMul(s.Scale(v, float64(k+1)), s.Read(w)))
				part = s.Minus(part, s.Reduce(ir.Sum, part, 0))
				if sum == nil {
					sum = part
				} else {
					sum = s.Plus(sum, part)
				}
			}
			v = sum
		}
		s.Store(out, v)
		s.Store(w, s.Plus(s.Read(w), s.Scale(s.Reduce(ir.Sum, v, 0), 0.0001)))
		l := loadOn(t, s.compile())
		if parallel := len(l.branches) > 1; parallel != (way.graph == "on" && way.branches != "off") {
			t.Errorf("%v: %d branches", way, len(l.branches))
		}
		a, b := make([]float32, 40*30), make([]float32, 30*30)
		rng := rand.New(rand.NewPCG(1, 2))
		for _, list := range [][]float32{a, b} {
			for i := range list {
				list[i] = rng.Float32() - 0.5
			}
		}
		l.write(t, x, a)
		l.write(t, w, b)
		for range 3 * rounds {
			if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
				t.Fatal(err)
			}
		}
		got := append(l.read(t, out), l.read(t, w)...)
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Errorf("%v: other results than step by step", way)
		}
	}
}

// planBuckets plans what makes so many buckets of n gradients one after the other, sums them over all cards, and updates parameters by all.
func planBuckets(t *testing.T, n, buckets int) (*plan, []*ir.Slot) {
	t.Helper()
	s := newSketch(t)
	v := s.in(n)
	var list []*ir.Slot
	for range buckets {
		v = s.Map(ir.Tanh, s.Minus(v, s.Reduce(ir.Sum, v, 0)))
		list = append(list, s.slot(ir.Grads, ir.F32, n))
		s.Store(list[len(list)-1], s.Scale(v, 2)) // which nothing else reads
	}
	for _, on := range list {
		s.parts = append(s.parts, ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce}, On: on})
	}
	s.next()
	all := &ir.Slot{Region: ir.Grads, Name: "all", Shape: ir.Of(n * buckets)}
	w := s.slot(ir.Params, ir.F32, n*buckets)
	s.Store(w, s.Plus(s.Read(w), s.Read(all)))
	p, err := newPlan(s.compile(), none{}, true)
	if err != nil {
		t.Fatal(err)
	}
	return p, list
}

// Collectives that cards carry out come in their order, each after what it sums, and what is computed later does not wait for it.
func TestCollectivesAreApart(t *testing.T) {
	const buckets = 3
	p, list := planBuckets(t, 64, buckets)
	if len(p.segments) != 1 || !p.segments[0].linked {
		t.Fatalf("the program is cut:\n%v", p)
	}
	tasks := p.segments[0].tasks
	turns := branches(p.dependencies(tasks), maxBranches, func(i int) int { return tasks[i].apart() })
	after := inTurn(turns, -1, 0)
	writer := func(on *ir.Slot) int {
		return slices.IndexFunc(tasks, func(t task) bool {
			return slices.ContainsFunc(p.program.Steps[t.step].Out, func(o ir.Operand) bool { return o.Region == on.Region && o.Offset == on.Offset })
		})
	}
	var sums []int
	for i := range tasks {
		if tasks[i].apart() == together {
			sums = append(sums, i)
		}
	}
	if len(sums) != buckets {
		t.Fatalf("%d collectives, want %d:\n%v", len(sums), buckets, p)
	}
	for k, sum := range sums {
		for b, on := range list {
			if computed := writer(on); after[sum][computed] != (b <= k) {
				t.Errorf("collective %d comes after bucket %d: %v", k, b, after[sum][computed])
			} else if after[computed][sum] {
				t.Errorf("bucket %d waits for collective %d", b, k)
			}
		}
		if k > 0 && !after[sum][sums[k-1]] {
			t.Errorf("collective %d may come before the one before it", k)
		}
		if last := len(tasks) - 1; !after[last][sum] {
			t.Errorf("the update may come before collective %d", k)
		}
		if turns[sum].branch != together {
			t.Errorf("collective %d is in branch %d", k, turns[sum].branch)
		}
	}
}

// copying is libraries whose products with sums are made of a copy of B along k, by a kernel of our own.
type copying struct{ none }

func (copying) choose(b *planner, s *ir.Step) (way, error) {
	if s.Epilogue.Sums {
		return along{copied: 1, parts: 1, pieces: 1}.way(), nil
	}
	return b.ways(s, 0)[0], nil
}

func (copying) product(b *planner, p matrices) (bool, error) { return true, b.ownMatMul(p) }

// Copies of operands wait for what makes those and for nothing else, and sums beside a product do not wait for it.
func TestCopiesAreApart(t *testing.T) {
	s := newSketch(t)
	x, w := s.in(64, 48), s.slot(ir.Params, ir.F32, 48, 48)
	h := s.Map(ir.Relu, s.MatMul(x, s.Read(w)))
	dy := s.MatMul(h, s.Read(w))
	s.out(dy)
	s.out(s.MatMul(s.T(dy), x))
	s.out(s.Sum(s.T(dy), 1))
	p, err := newPlan(s.compile(), copying{}, false)
	if err != nil {
		t.Fatal(err)
	}
	tasks := p.segments[0].tasks
	turns := branches(p.dependencies(tasks), maxBranches, func(i int) int { return tasks[i].apart() })
	after := inTurn(turns, -1, 0)
	const step = 2 // the product with sums
	copied, product, sums := -1, -1, -1
	for i, task := range tasks {
		l, ok := task.do.(launch)
		switch {
		case !ok || task.step != step:
		case l.args[len(l.args)-1].base == scratch:
			copied = i
		case strings.HasPrefix(p.kernels[l.kernel], "matMul"):
			product = i
		default:
			sums = i
		}
	}
	if copied < 0 || product < 0 || sums < 0 {
		t.Fatalf("the copy is task %d, the product %d, its sums %d of\n%v", copied, product, sums, p)
	}
	if slices.Contains(after[copied], true) {
		t.Errorf("the copy of the input waits: %v", after[copied])
	}
	if !after[product][copied] || after[sums][copied] || after[sums][product] || after[product][sums] {
		t.Errorf("after the copy, task %d: the product, %d, which comes after %v, and sums, %d, after %v", copied, product, after[product], sums, after[sums])
	}
}
