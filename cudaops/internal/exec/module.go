package exec

import (
	"embed"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

//go:embed kernels/*.cuh
var files embed.FS

// preludes are the files of kernels, each after those that it builds on.
var preludes = []string{"base", "instructions", "random", "reduce", "rows", "move", "pool", "product", "places", "tensor", "halo", "filters", "turned", "single"}

// buildsOn are the files that a file needs besides base.
var buildsOn = map[string][]string{
	"rows": {"reduce"}, "places": {"pool"}, "single": {"product"}, "tensor": {"instructions"},
	"halo": {"instructions", "product"}, "filters": {"instructions", "product"}, "turned": {"instructions", "product", "filters"},
}

// module collects the kernels of a program into sources. Equal kernels are one, so that equal programs give equal sources.
//
// Where a product could be carried out in several ways, its kernels have a source of their own: so what a trial has had compiled is found again. Those
// of all other steps share one, since a compiler begins anew with each source.
type module struct {
	kernels []string // names
	turns   []bool   // which of them wait in turn
	texts   []string
	units   []unit // the first for all steps but such products
	apart   bool   // kernels go into the last one
	known   map[kernelKey]int
}

// unit is what becomes a source.
type unit struct {
	uses    map[string]bool // preludes
	kernels []int
}

type kernelKey struct {
	text  string
	apart bool // such kernels are not shared with other steps, whose source would depend on the way that is chosen
}

// aside gives the kernels that plan adds a source of their own.
func (m *module) aside(plan func() error) error {
	m.ready()
	m.units, m.apart = append(m.units, unit{}), true
	defer func() { m.apart = false }()
	return plan()
}

func (m *module) ready() {
	if m.known == nil {
		m.known, m.units = map[kernelKey]int{}, make([]unit, 1)
	}
}

// kernel adds a kernel, unless it is there, and returns its number. In its text, @ stands for its name, which begins with stem.
func (m *module) kernel(stem, text string, uses ...string) int {
	m.ready()
	key := kernelKey{text, m.apart}
	if k, ok := m.known[key]; ok {
		return k
	}
	u := &m.units[0]
	name := fmt.Sprintf("%s%d", stem, len(u.kernels))
	if m.apart {
		u = &m.units[len(m.units)-1]
		// The same in every program.
		h := fnv.New32a()
		h.Write([]byte(text))
		name = fmt.Sprintf("%s_%08x", stem, h.Sum32())
	}
	u.add(len(m.kernels), uses)
	m.known[key] = len(m.kernels)
	m.kernels = append(m.kernels, name)
	m.turns = append(m.turns, strings.Contains(text, late))
	m.texts = append(m.texts, strings.ReplaceAll(text, "@", name))
	return len(m.kernels) - 1
}

// add notes a kernel and the preludes that it uses.
func (u *unit) add(kernel int, uses []string) {
	if u.uses == nil {
		u.uses = map[string]bool{"base": true}
	}
	for _, p := range uses {
		u.uses[p] = true
		for _, first := range buildsOn[p] {
			u.uses[first] = true
		}
	}
	u.kernels = append(u.kernels, kernel)
}

// filled are the units that have kernels.
func (m *module) filled() []unit {
	return slices.DeleteFunc(slices.Clone(m.units), func(u unit) bool { return len(u.kernels) == 0 })
}

// sources are those of the filled units.
func (m *module) sources() (list []string) {
	for _, u := range m.filled() {
		list = append(list, m.source(u))
	}
	return list
}

func (m *module) source(u unit) string {
	var b strings.Builder
	for _, p := range preludes {
		if u.uses[p] {
			text, err := files.ReadFile("kernels/" + p + ".cuh")
			if err != nil {
				panic(err) // it is part of the program
			}
			b.Write(text)
			b.WriteByte('\n')
		}
	}
	for _, k := range u.kernels {
		b.WriteString(m.texts[k])
		b.WriteByte('\n')
	}
	return b.String()
}

// threads is the size of a block, unless its kernel says otherwise.
const threads = 256

// entry is the head of a kernel with the given parameters.
func entry(params ...string) string { return entryOf(threads, params...) }

// entryOf is entry for blocks of another size.
func entryOf(threads int, params ...string) string {
	return fmt.Sprintf("extern \"C\" __global__ void __launch_bounds__(%d) @(%s)", threads, strings.Join(params, ", "))
}

// late is the last parameter of kernels that wait by themselves for those before them, by a Turn, so that they can be launched early.
const late = "int late"

// waiting is the head of such a kernel with the given parameters before that, and the start of its body.
func waiting(params ...string) string { return waitingOf(threads, params...) }

// waitingOf is waiting for blocks of another size.
func waitingOf(threads int, params ...string) string {
	return entryOf(threads, append(slices.Clone(params), late)...) + " {\n    const Turn turn(late);\n"
}

// reads and writes are a kernel's parameters for operands, in C++.
func reads(o ir.Operand, name string) string {
	return fmt.Sprintf("const %s *%s", ctype(o.DType), name)
}

func writes(o ir.Operand, name string) string { return fmt.Sprintf("%s *%s", ctype(o.DType), name) }

// call is a kernel that does nothing but call a function of a prelude with its parameters.
func call(function string, params ...string) string {
	var args []string
	for _, p := range params {
		args = append(args, strings.TrimLeft(p[strings.LastIndex(p, " ")+1:], "*"))
	}
	return fmt.Sprintf("%s    %s(%s);\n}\n", waiting(params...), function, strings.Join(args, ", "))
}
