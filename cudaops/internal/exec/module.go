package exec

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/ir"
)

//go:embed kernels/*.cuh
var files embed.FS

// preludes are the files of kernels, each after those that it builds on.
var preludes = []string{"base", "random", "reduce", "rows", "move", "pool", "product", "places", "tensor", "groups", "halo", "filters", "turned", "single"}

// buildsOn are the files that a file needs besides base.
var buildsOn = map[string][]string{"rows": {"reduce"}, "places": {"pool"}, "filters": {"product", "tensor"}, "halo": {"product", "tensor", "groups"}, "turned": {"product", "tensor", "groups", "filters"}, "single": {"product"}}

// module collects the kernels of a program into one source. Equal kernels are one, so that equal programs give equal sources.
type module struct {
	uses    map[string]bool // preludes
	kernels []string        // names
	turns   []bool          // which of them wait in turn
	texts   []string
	known   map[string]int
}

// kernel adds a kernel, unless it is there, and returns its number. In its text, @ stands for its name, which begins with stem.
func (m *module) kernel(stem, text string, uses ...string) int {
	if m.known == nil {
		m.known, m.uses = map[string]int{}, map[string]bool{"base": true}
	}
	if k, ok := m.known[text]; ok {
		return k
	}
	for _, u := range uses {
		m.uses[u] = true
		for _, first := range buildsOn[u] {
			m.uses[first] = true
		}
	}
	k := len(m.kernels)
	name := fmt.Sprintf("%s%d", stem, k)
	m.known[text] = k
	m.kernels = append(m.kernels, name)
	m.turns = append(m.turns, strings.Contains(text, late))
	m.texts = append(m.texts, strings.ReplaceAll(text, "@", name))
	return k
}

// source is the whole of it; a module without kernels has none.
func (m *module) source() string {
	if len(m.kernels) == 0 {
		return ""
	}
	var b strings.Builder
	for _, p := range preludes {
		if m.uses[p] {
			text, err := files.ReadFile("kernels/" + p + ".cuh")
			if err != nil {
				panic(err) // it is part of the program
			}
			b.Write(text)
			b.WriteByte('\n')
		}
	}
	for _, t := range m.texts {
		b.WriteString(t)
		b.WriteByte('\n')
	}
	return b.String()
}

// threads is the size of every block.
const threads = 256

// entry is the head of a kernel with the given parameters.
func entry(params ...string) string {
	return fmt.Sprintf("extern \"C\" __global__ void __launch_bounds__(%d) @(%s)", threads, strings.Join(params, ", "))
}

// late is the last parameter of kernels that wait by themselves for those before them, by a Turn, so that they can be launched early.
const late = "int late"

// waiting is the head of such a kernel with the given parameters before that, and the start of its body.
func waiting(params ...string) string {
	return entry(append(slices.Clone(params), late)...) + " {\n    const Turn turn(late);\n"
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
