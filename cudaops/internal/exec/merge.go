package exec

import (
	"fmt"
	"slices"
	"strings"
)

// A launch takes longer than what a single block does. So a task of one block that goes on with what such a task has made becomes one kernel
// with it, of one block that does them one after the other. Tasks that do not depend on each other stay apart: they run at the same time, and
// what waits for one of them need not wait for all.
const (
	mostMerged = 8        // tasks a kernel: the shared memory of all of them must fit in a block's 48 KiB
	lookBack   = 64       // how far a task may move up, in launches
	mostMoved  = 4 * 1024 // elements that a block may set or copy, rather than the driver
	mostRounds = 4        // blocks whose work one block may do instead
)

// bundle is a task, or some that are of one block and become one.
type bundle struct {
	tasks []task
	small bool
}

// merge joins small tasks and writes the module anew, with the kernels that are left.
func (b *planner) merge() {
	draft := b.module
	b.module = module{}
	for i := range b.segments {
		s := &b.segments[i]
		bundles := b.bundles(&draft, s.tasks)
		s.tasks = nil
		for _, g := range bundles {
			s.tasks = append(s.tasks, b.join(&draft, g.tasks))
		}
	}
}

// bundles joins small tasks to those that they go on from.
func (b *planner) bundles(draft *module, tasks []task) []bundle {
	var list []bundle
	for _, t := range tasks {
		small := draft.small(t.do)
		if small {
			if i := b.before(list, t); i >= 0 {
				list[i].tasks = append(list[i].tasks, t)
				continue
			}
		}
		list = append(list, bundle{[]task{t}, small})
	}
	return list
}

// before is the last bundle that a small task must come after, if it has room and the task is the first that depends on it, or -1.
func (b *planner) before(list []bundle, t task) int {
	for i := len(list) - 1; i >= max(0, len(list)-lookBack); i-- {
		g := list[i]
		if !b.conflict(g.tasks, []task{t}) {
			continue
		}
		if g.room() && !slices.ContainsFunc(list[i+1:], func(later bundle) bool { return b.conflict(g.tasks, later.tasks) }) {
			return i
		}
		break
	}
	return -1
}

func (g bundle) room() bool { return g.small && len(g.tasks) < mostMerged }

// conflict reports whether one of some tasks writes what one of some others reads or writes, or the other way round.
func (b *planner) conflict(some, others []task) bool {
	for _, x := range some {
		spans := b.spans(x)
		for _, y := range others {
			for _, t := range b.spans(y) {
				if slices.ContainsFunc(spans, t.conflict) {
					return true
				}
			}
		}
	}
	return false
}

// small reports whether one block, with little shared memory, does a task soon enough.
func (m *module) small(do any) bool {
	switch t := do.(type) {
	case launch:
		k := m.made[t.kernel]
		return (t.blocks == 1 || t.rounds && t.blocks <= mostRounds) && t.planes <= 1 && !slices.Contains(k.uses, "product") && k.stem != "scatterAdd"
	case fill:
		return t.n <= mostMoved
	case transfer:
		return t.n <= mostMoved
	}
	return false
}

// stage is a small task as a kernel with arguments.
func (m *module) stage(do any) (kernel, []place) {
	loop := func(stem string, n int, from string, params ...string) kernel {
		return kernel{stem: stem, text: fmt.Sprintf("%s {\n    for (u32 i = threadIdx.x; i < %d; i += %d) to[i] = %s;\n}\n", entry(params...), n, threads, from)}
	}
	switch t := do.(type) {
	case fill:
		return loop("fill", t.n, fmt.Sprintf("0x%xu", t.word), "u32 *to"), []place{t.to}
	case transfer:
		return loop("copy", t.n, "from[i]", "const u32 *from", "u32 *to"), []place{t.from, t.to}
	}
	l := do.(launch)
	return m.made[l.kernel], l.args
}

// join makes a bundle one task.
func (b *planner) join(draft *module, tasks []task) task {
	first := tasks[0]
	if len(tasks) == 1 {
		if l, ok := first.do.(launch); ok {
			k := draft.made[l.kernel]
			l.kernel = b.kernel(k.stem, k.text, k.uses...)
			return task{step: first.step, do: l}
		}
		return first
	}
	var (
		parts, body  strings.Builder
		known        = map[string]string{} // names of parts, by text
		stems, uses  []string
		params, args = []string{}, []place{}
		more         []int
	)
	// param is the parameter for a place, seen as a type.
	param := func(kind string, p place) string {
		for i, q := range args {
			if q == p && strings.HasPrefix(params[i], kind+"p") {
				return fmt.Sprintf("p%d", i)
			}
		}
		name := fmt.Sprintf("p%d", len(args))
		params, args = append(params, kind+name), append(args, p)
		return name
	}
	for i, t := range tasks {
		k, places := draft.stage(t.do)
		before, declared, rest := k.split()
		name, ok := known[k.text]
		if !ok {
			name = fmt.Sprintf("@Part%d", len(known))
			known[k.text] = name
			parts.WriteString(strings.ReplaceAll(fmt.Sprintf("%s__device__ __forceinline__ void @(%s)%s", before, strings.Join(declared, ", "), rest), "@", name))
			uses = append(uses, k.uses...)
		}
		if len(stems) == 0 || stems[len(stems)-1] != k.stem {
			stems = append(stems, k.stem)
		}
		var passed []string
		for j, d := range declared {
			passed = append(passed, param(d[:strings.LastIndexAny(d, " *")+1], places[j]))
		}
		if i > 0 {
			body.WriteString("    __syncthreads();\n")
			more = append(more, t.step)
		}
		fmt.Fprintf(&body, "    %s(%s);\n", name, strings.Join(passed, ", "))
	}
	text := fmt.Sprintf("%s%s {\n%s}\n", &parts, entry(params...), &body)
	return task{first.step, launch{kernel: b.kernel(strings.Join(stems, "_"), text, uses...), blocks: 1, args: args}, more}
}

// split takes a kernel's text apart: what stands before its head, its parameters, and the rest. Parameters lose their restriction, since
// what a part of a kernel only reads, another part may have written.
func (k kernel) split() (before string, params []string, rest string) {
	before, rest, _ = strings.Cut(k.text, head)
	declared, rest, _ := strings.Cut(rest, ")")
	return before, strings.Split(strings.ReplaceAll(declared, "__restrict__ ", ""), ", "), rest
}
