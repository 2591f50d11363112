package host

import "github.com/tandem-train/tandem/internal/ir"

// shared is work cut into parts, which the threads take from each other until none is left. Which thread does a part makes no
// difference to its result.
type shared struct {
	parts int
	work  func(worker, part int) // kept, so that a run makes no closure
}

func (s *shared) run(e *Exec) error {
	switch {
	case s.parts > 1:
		e.pool.Run(s.parts, s.work)
	case s.parts == 1:
		s.work(0, 0)
	}
	return nil
}

// grain is the work, in instructions times elements, below which a second thread costs more than it brings.
const grain = 1 << 15

// cut is into how many parts to cut n things that cost work in all: a few a thread, so that one that is late holds nobody up.
func (b *builder) cut(n, work int) int {
	if b.threads == 1 {
		return min(n, 1)
	}
	return max(min(n, 1), min(n, 4*b.threads, work/grain))
}

// share is part p of parts of n things, which are in order and differ by one at most.
func share(n, p, parts int) (lo, hi int) { return n * p / parts, n * (p + 1) / parts }

// fused runs a loop over all its tiles.
type fused struct {
	*loop
	shared
}

func (b *builder) fused(s *ir.Step) (step, error) {
	l, err := b.loop(s, s.Out, s.Results, identity(len(s.Loop.Shape)))
	if err != nil {
		return nil, err
	}
	f := &fused{loop: l}
	f.shared = shared{b.cut(l.count, l.size()*(len(l.body)+1)), f.tiles}
	return f, nil
}

func (s *fused) run(e *Exec) error {
	s.start(e.rt)
	return s.shared.run(e)
}

func (s *fused) tiles(worker, part int) {
	f := &s.frames[worker]
	s.begin(f)
	lo, hi := share(s.count, part, s.parts)
	for i := lo; i < hi; i++ {
		s.eval(f, s.tile(&s.space, i))
	}
}

// loop prepares the loop of s and asks for its buffers.
func (b *builder) loop(s *ir.Step, outs []ir.Operand, results, perm []int) (*loop, error) {
	l, err := buildLoop(s.Loop, b.kernels, b.memory, s.In, outs, results, perm)
	if err != nil {
		return nil, err
	}
	b.need((l.buffers+2)*tileLen, func(all []scratch) { l.prepare(s.Loop, all) })
	return l, nil
}

func identity(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	return p
}

// start readies the loop for a run.
func (l *loop) start(rt *ir.Runtime) {
	if l.random {
		l.key, l.first = rt.Key(), uint64(rt.FirstSample)*l.perSample
	}
}
