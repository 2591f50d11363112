package tools

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/tandem-train/tandem"

// room is a part of the tree with rules of its own for what its packages may import. A package belongs to the room with the
// longest path above it, and may always import packages of its own room.
type room struct {
	path     string
	may      []string // rooms
	gorgonia bool     // whether it may see Gorgonia
}

// rooms are all there are, top to bottom: a room may import rooms further down only. Tests are free to import what they test with.
var rooms = []room{
	{path: "examples", may: []string{"internal/atomicfile", "launcher", "metrics", "tensorboard", "dp", "nn", "cudaops", "internal/idx"}, gorgonia: true},
	{path: "benchmarks", may: []string{"internal/atomicfile", "launcher", "dp", "dp/comm", "nn", "cudaops", "internal/job", "internal/host", "internal/host/kernel", "internal/ir"}, gorgonia: true},
	{path: "launcher/tandem", may: []string{"internal/atomicfile", "launcher", "cudaops", "internal/job"}},
	{path: "launcher", may: []string{"internal/job"}},
	{path: "internal/tools"},
	{path: "metrics", may: []string{"dp", "cudaops", "internal/job"}},
	{path: "tensorboard"},
	{path: "dp", may: []string{"dp/comm", "nn", "cudaops", "internal/job", "internal/host", "internal/ir", "internal/philox"}, gorgonia: true},
	{path: "dp/comm", may: []string{"internal/job", "internal/host/kernel", "internal/ir"}},
	{path: "nn", may: []string{"internal/atomicfile", "nn/op", "internal/lower", "internal/ir", "internal/philox"}, gorgonia: true},
	{path: "nn/op", may: []string{"internal/lower", "internal/host", "internal/ir"}, gorgonia: true},
	{path: "internal/lower", may: []string{"internal/ir"}, gorgonia: true},
	{path: "cudaops", may: []string{"internal/host", "internal/ir", "internal/philox"}},
	{path: "internal/host", may: []string{"internal/host/kernel", "internal/ir", "internal/philox"}},
	{path: "internal/host/kernel"},
	{path: "internal/ir", may: []string{"internal/philox"}},
	{path: "internal/philox"},
	{path: "internal/idx"},
	{path: "internal/job", may: []string{"internal/atomicfile"}},
	{path: "internal/atomicfile"},
}

// roomOf is the room of a package, by its path in the module.
func roomOf(pkg string) *room {
	var found *room
	for i, r := range rooms {
		if (pkg == r.path || strings.HasPrefix(pkg, r.path+"/")) && (found == nil || len(r.path) > len(found.path)) {
			found = &rooms[i]
		}
	}
	return found
}

// forbidden says why a package, by its path in the module, may not import a path; "" where it may.
func forbidden(pkg, imported string) string {
	from := roomOf(pkg)
	if from == nil {
		return pkg + " is in no room: give it one in rooms_test.go and in ARCHITECTURE.md"
	}
	if strings.HasPrefix(imported, "gorgonia.org/") && !from.gorgonia {
		return fmt.Sprintf("%s imports %s: %s knows nothing of Gorgonia", pkg, imported, from.path)
	}
	inside, ok := strings.CutPrefix(imported, module+"/")
	if !ok {
		return ""
	}
	if to := roomOf(inside); to != from && (to == nil || !slices.Contains(from.may, to.path)) {
		return fmt.Sprintf("%s imports %s: %s may import %v of this module", pkg, inside, from.path, from.may)
	}
	return ""
}

func TestImportsGoDown(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := map[*room]bool{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (base == "build" || base == "testdata" || strings.HasPrefix(base, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(rel))
		seen[roomOf(pkg)] = true
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if why := forbidden(pkg, imported); why != "" {
				t.Errorf("%s: %s", rel, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rooms {
		if !seen[&rooms[i]] {
			t.Errorf("room %s has no package", rooms[i].path)
		}
	}
}

// TestRoomsAreInOrder: what a room may import stands below it, so that no two rooms can need each other.
func TestRoomsAreInOrder(t *testing.T) {
	for i, r := range rooms {
		for _, below := range r.may {
			at := slices.IndexFunc(rooms, func(o room) bool { return o.path == below })
			if at <= i {
				t.Errorf("%s may import %s, which is not below it", r.path, below)
			}
		}
	}
}

func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		pkg, imported string
		allowed       bool
	}{
		{"examples/mnist", module + "/dp/data", true},
		{"dp", module + "/dp/comm", true},
		{"nn", "gorgonia.org/gorgonia", true},
		{"cudaops/cudaopstest", module + "/cudaops", true},
		{"internal/ir", "fmt", true},
		{"cudaops", module + "/nn", false},
		{"cudaops", module + "/dp/comm", false},
		{"nn", module + "/dp", false},
		{"nn", module + "/cudaops", false},
		{"nn/op", module + "/nn", false},
		{"dp/comm", module + "/dp", false},
		{"internal/ir/ref", "gorgonia.org/tensor", false},
		{"internal/ir", module + "/cudaops", false},
		{"internal/host", module + "/internal/lower", false},
		{"internal/lower", module + "/internal/host", false},
		{"dp", module + "/examples/mnist", false},
		{"launcher", module + "/dp", false},
		{"launcher", module + "/internal/job", true},
		{"plots", "fmt", false}, // no room
	} {
		if why := forbidden(c.pkg, c.imported); (why == "") != c.allowed {
			t.Errorf("%s imports %s: got %q, want allowed: %v", c.pkg, c.imported, why, c.allowed)
		}
	}
}
