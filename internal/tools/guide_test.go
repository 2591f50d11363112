package tools

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGuide follows docs/guide.md as a reader does: one shell, in the root of the repository, runs its blocks from top to bottom.
//
//	sh       lines that begin with $ are commands; those below are what they print. What a command leaves in the shell stays.
//	go       the first one is a program; each other one is run in its place
//	text     what the go block before it prints
//
// In what is printed, … stands for anything within a line, and a line of it alone for any lines; how far columns are apart does not count. Commands and programs are to succeed, but for
// the last of a block that has "fails" behind its language. Blocks of other languages are not looked at.
func TestGuide(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the commands and runs them")
	}
	guide, err := os.ReadFile(filepath.Join("..", "..", "docs", "guide.md"))
	if err != nil {
		t.Fatal(err)
	}
	acts, program, err := script(string(guide))
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	env := clean(append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "GOBIN="+bin, "GOFLAGS=-buildvcs=false "+os.Getenv("GOFLAGS")))
	if err := program.build(t.Context(), t.TempDir(), filepath.Join(bin, snippets), env); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join("..", "..", "build", "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, checkpoint := range kept { // by an earlier run, which this one would go on from
		if err := os.Remove(checkpoint); err != nil {
			t.Fatal(err)
		}
	}
	outcomes, err := follow(t.Context(), acts, env)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range acts {
		got := outcomes[i]
		t.Logf("after %2d s: %s", got.seconds, a.command)
		if diff := compare(got.printed, a.want); diff != "" {
			t.Errorf("docs/guide.md:%d: %s\nprints (+), the guide shows (-):\n%s", a.line, a.command, diff)
		}
		if (got.status != 0) != a.fails {
			t.Errorf("docs/guide.md:%d: %s\nends with status %d; want it to fail: %t", a.line, a.command, got.status, a.fails)
		}
	}
}

// act is a command of the guide.
type act struct {
	line    int
	command string
	want    []string // lines that it prints
	fails   bool
}

// block is a fenced part of the guide.
type block struct {
	line  int // of its first line within
	lang  string
	fails bool
	lines []string
}

// blocks are the fenced parts of a page.
func blocks(page string) (list []block, err error) {
	open := false
	for i, line := range strings.Split(page, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && !open:
			words := strings.Fields(info + " -")
			list = append(list, block{line: i + 2, lang: words[0], fails: slices.Contains(words, "fails")})
			open = true
		case fence:
			open = false
		case open:
			b := &list[len(list)-1]
			b.lines = append(b.lines, line)
		}
	}
	if open {
		return nil, fmt.Errorf("line %d: a block without an end", list[len(list)-1].line-1)
	}
	return list, nil
}

// snippets is the name of the program that runs the go blocks, by their numbers.
const snippets = "guide-snippet"

// script is what to do, and the program that does the go blocks.
func script(page string) (acts []act, p program, err error) {
	list, err := blocks(page)
	if err != nil {
		return nil, p, err
	}
	for i, b := range list {
		switch b.lang {
		case "sh":
			first := len(acts)
			for k, line := range b.lines {
				if command, ok := strings.CutPrefix(line, "$ "); ok {
					acts = append(acts, act{line: b.line + k, command: command})
				} else if len(acts) == first {
					return nil, p, fmt.Errorf("line %d: want a command, $ and what it is, before what it prints", b.line+k)
				} else {
					a := &acts[len(acts)-1]
					a.want = append(a.want, line)
				}
			}
			acts[len(acts)-1].fails = b.fails
		case "go":
			if p.frame == nil {
				p.frame = b.lines
				continue
			}
			p.bodies = append(p.bodies, b)
			a := act{line: b.line, command: snippets + " " + strconv.Itoa(len(p.bodies)-1), fails: b.fails}
			if i+1 < len(list) && list[i+1].lang == "text" {
				a.want = list[i+1].lines
			}
			acts = append(acts, a)
		}
	}
	return acts, p, nil
}

// program is the guide's first program, and what is put into it.
type program struct {
	frame  []string
	bodies []block
}

// here is the line of the program in whose place the others stand.
const here = "\t// What follows in this guide goes here."

// build makes one program of all, in a folder, which runs the one whose number it is given.
func (p *program) build(ctx context.Context, dir, path string, env []string) error {
	at := slices.Index(p.frame, here)
	if at < 0 {
		return fmt.Errorf("the first go block has no line %q", here)
	}
	imports, _, found := strings.Cut(strings.Join(p.frame, "\n"), "\nfunc ")
	if !found {
		return fmt.Errorf("the first go block has no function")
	}
	var calls, bodies strings.Builder
	fmt.Fprintf(&calls, "\tswitch os.Args[1] {\n")
	for i, b := range p.bodies {
		fmt.Fprintf(&calls, "\tcase \"%d\":\n\t\treturn snippet%d(ctx)\n", i, i)
		fmt.Fprintf(&bodies, "func snippet%d(ctx context.Context) error {\n//line docs/guide.md:%d\n%s\nreturn nil\n}\n\n", i, b.line, strings.Join(b.lines, "\n"))
	}
	calls.WriteString("\t}")
	frame := slices.Concat(p.frame[:at], []string{calls.String()}, p.frame[at+1:])
	build := exec.CommandContext(ctx, "go", "build", "-o", path)
	build.Dir, build.Env = filepath.Join("..", ".."), env
	for name, source := range map[string]string{"frame.go": strings.Join(frame, "\n"), "snippets.go": imports + "\n" + bodies.String()} {
		used, err := withoutUnused(source)
		if err != nil {
			return fmt.Errorf("docs/guide.md: %s: %w", name, err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, used, 0o600); err != nil {
			return err
		}
		build.Args = append(build.Args, file)
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the go blocks of docs/guide.md: %w\n%s", err, out)
	}
	return nil
}

// withoutUnused drops imports that a file does not use, as editors do.
func withoutUnused(source string) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
		return true
	})
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			g.Specs = slices.DeleteFunc(g.Specs, func(s ast.Spec) bool {
				path := strings.TrimSuffix(strings.Trim(s.(*ast.ImportSpec).Path.Value, `"`), "/v2")
				return !used[filepath.Base(path)]
			})
		}
	}
	var b bytes.Buffer
	err = format.Node(&b, fset, file)
	return b.Bytes(), err
}

// outcome is what came of a command.
type outcome struct {
	printed []string
	status  int
	seconds int // since the shell's start
}

// follow runs the commands in one shell.
func follow(ctx context.Context, acts []act, env []string) ([]outcome, error) {
	const mark = "\x1e" // begins the line that ends what a command prints
	var b strings.Builder
	for _, a := range acts {
		fmt.Fprintf(&b, "%s\nprintf '\\n\\036%%d %%s\\n' $? $SECONDS\n", a.command)
	}
	shell := exec.CommandContext(ctx, "bash", "-c", b.String())
	shell.Dir, shell.Env = filepath.Join("..", ".."), env
	out, err := shell.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("bash: %w\n%s", err, out)
	}
	list := make([]outcome, 0, len(acts))
	var lines []string
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		status, end := strings.CutPrefix(s.Text(), mark)
		if !end {
			lines = append(lines, s.Text())
			continue
		}
		o := outcome{printed: lines[:len(lines)-1]} // the mark has an empty line before it
		if _, err := fmt.Sscan(status, &o.status, &o.seconds); err != nil {
			return nil, fmt.Errorf("status %q: %w", status, err)
		}
		list, lines = append(list, o), nil
	}
	if len(list) != len(acts) {
		return nil, fmt.Errorf("%d commands came to an end, not %d:\n%s", len(list), len(acts), out)
	}
	return list, nil
}

// clean is an environment without what changes what the guide shows.
func clean(env []string) []string {
	return slices.DeleteFunc(env, func(s string) bool {
		return strings.HasPrefix(s, "TANDEM_") || strings.HasPrefix(s, "CUDA_") || strings.HasPrefix(s, "OMP_")
	})
}

// anything stands for what differs from run to run.
const anything = "…"

// apart is what stands between columns, whose width may differ.
var apart = regexp.MustCompile("  +")

// compare says how lines differ from what they should be, or is empty.
func compare(got, want []string) string {
	got, want = trimmed(got), trimmed(want)
	var pattern strings.Builder
	for _, line := range want {
		if line == anything {
			pattern.WriteString("(?:.*\n)*?")
			continue
		}
		line = strings.ReplaceAll(regexp.QuoteMeta(line), anything, ".*")
		pattern.WriteString(apart.ReplaceAllString(line, "  +") + "\n")
	}
	all := strings.Join(append(got, ""), "\n")
	if regexp.MustCompile(`\A` + pattern.String() + `\z`).MatchString(all) {
		return ""
	}
	return cmp.Diff(want, got)
}

// trimmed are lines without spaces at their ends, and without empty lines at the end, which a page need not show.
func trimmed(lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = strings.TrimRight(line, " ")
	}
	for len(out) > 0 && out[len(out)-1] == "" {
		out = out[:len(out)-1]
	}
	return out
}

// TestCompare: what the guide shows has to be what is printed.
func TestCompare(t *testing.T) {
	for _, c := range []struct {
		want, got string
		same      bool
	}{
		{"a\nb", "a\nb\n\n", true},
		{"a\nb", "a\nc", false},
		{"a", "a\nb", false},
		{"a\nb", "a", false},
		{"", "a", false},
		{"loss … in … s", "loss 0.31 in 4 s", true},
		{"loss … in … s", "loss 0.31 in 4 ms", false},
		{"a.c", "abc", false},
		{"  a  b", "    a   b", true},
		{"a  b", "a b", false},
		{"a\n…\nd", "a\nb\nc\nd", true},
		{"a\n…\nd", "a\nd", true},
		{"a\n…\nd", "a\nb\nc", false},
		{"…\nd", "a\nd\ne", false},
	} {
		if same := compare(strings.Split(c.got, "\n"), strings.Split(c.want, "\n")) == ""; same != c.same {
			t.Errorf("%q beside %q: same is %t", c.got, c.want, same)
		}
	}
}
