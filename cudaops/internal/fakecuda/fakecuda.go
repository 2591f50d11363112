// Package fakecuda gives tests a CUDA driver, an NVML and an NCCL without a card, so that all of the code that talks to them runs: what loads
// them, allocates, copies, and makes errors of codes.
//
// The fakes are C (folder src), compiled with gcc when the tests start. A test that wants them begins with
//
//	if !fakecuda.In(t, fakecuda.Config{...}) {
//		return
//	}
//
// since a process has one driver, which reads its environment once: [In] runs the test again in a process of its own, gives false in the
// first process, and true in the second. Tests without gcc are skipped. The package's TestMain calls [Main].
//
// The fake does what is in a stream as late as possible, and ends the process for what no card would survive. Kernels do nothing, unless
// [Config.Kernels] asks for them: then their source is compiled with g++ and their threads run on the host, slowly, cluster after cluster of
// blocks. For the instructions of newer cards there are functions (instructions.h); other PTX they cannot do.
package fakecuda

import (
	"bytes"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Config is what the fake pretends.
type Config struct {
	// Cards are the MiB of each card of the machine.
	Cards []int64
	// Env are variables of the process. What CUDA_VISIBLE_DEVICES among them shows is what the driver shows.
	Env map[string]string
	// InitCode is what cuInit gives, if not what follows from the above.
	InitCode int
	// Context is the MiB that a context takes, Other what another process (4242, "other") holds of each card.
	Context, Other int64
	// PIDShift is what NVML adds to this process's number.
	PIDShift int
	// NCCL is whether there is an NCCL, for ranks that are threads of this process.
	NCCL bool
	// Kernels are run, with an NVRTC that goes with the driver. The cards then are of compute capability 7.0.
	Kernels bool
	// Subtests is a pattern of those to run, if not all.
	Subtests string
	// Fail are calls that fail.
	Fail []Failure
}

// Failure makes a function of the driver or NVML give a code, from its call number From (1 is the first) on.
type Failure struct {
	Func       string
	Code, From int
}

// UUID is the UUID of a card of the machine.
func UUID(physical int) string {
	return fmt.Sprintf("GPU-%02x112233-4455-6677-8899-aabbccddeeff", 0xa0+physical)
}

const (
	childVariable = "TANDEM_FAKE_CUDA_TEST" // the name of the test that a process is for
	logVariable   = "FAKE_CUDA_LOG"
)

// In reports whether this process has the fake driver. If not, it runs the test in one that has.
func In(t *testing.T, c Config) bool {
	t.Helper()
	if os.Getenv(childVariable) == t.Name() {
		return true
	}
	if os.Getenv(childVariable) != "" {
		return false // a sibling of the subtest that the process is for
	}
	dir, err := build()
	for _, more := range []struct {
		wanted bool
		build  func() (string, error)
	}{{c.Kernels, buildCompiler}, {c.NCCL, buildNCCL}} {
		if err == nil && more.wanted {
			var its string
			its, err = more.build()
			dir += string(os.PathListSeparator) + its
		}
	}
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("the fake CUDA driver takes gcc, its kernels g++: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(t.Name(), "/")
	name := len(parts)
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	if c.Subtests != "" {
		parts = append(parts, c.Subtests)
	}
	if asked := strings.Split(flag.Lookup("test.run").Value.String(), "/"); len(asked) > name {
		parts = append(parts[:name], asked[name:]...) // subtests that only the other process knows
	}
	cmd := exec.Command(os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.v")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		forTests := strings.HasPrefix(v, "TANDEM_SEED=") || strings.HasPrefix(v, "TANDEM_TEST_LONG=")
		return strings.HasPrefix(v, "CUDA_") || strings.HasPrefix(v, "TANDEM_") && !forTests
	})
	cmd.Env = append(cmd.Env, childVariable+"="+t.Name(), "TANDEM_CUDA_PATH="+dir, "TANDEM_CACHE="+t.TempDir(), "GORACE=atexit_sleep_ms=0", logVariable+"="+filepath.Join(t.TempDir(), "calls"))
	cmd.Env = append(cmd.Env, c.variables()...)
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("with the fake driver (%v):\n%s", err, out)
	}
	return false
}

// variables say to the fake what c does.
func (c Config) variables() []string {
	uuids := make([]string, len(c.Cards))
	for i := range uuids {
		uuids[i] = UUID(i)
	}
	value, set := c.Env["CUDA_VISIBLE_DEVICES"]
	v := cudaops.ResolveVisible(uuids, value, set)
	seen := list(v.Cards)
	switch {
	case c.InitCode != 0:
		seen = fmt.Sprintf("error %d", c.InitCode)
	case v.Repeated:
		seen = fmt.Sprintf("error %d", cuda.InvalidDevice)
	case len(v.Cards) == 0:
		seen = fmt.Sprintf("error %d", cuda.NoDevice)
	}
	var fails []string
	for _, f := range c.Fail {
		fails = append(fails, fmt.Sprintf("%s %d %d", f.Func, f.Code, f.From))
	}
	major := 9
	if c.Kernels {
		major = 7
	}
	return []string{
		fmt.Sprintf("FAKE_CUDA_MAJOR=%d", major),
		"FAKE_CUDA_CARDS=" + list(c.Cards), "FAKE_CUDA_SEEN=" + seen, "FAKE_CUDA_FAIL=" + strings.Join(fails, ";"),
		fmt.Sprintf("FAKE_CUDA_CONTEXT=%d", c.Context), fmt.Sprintf("FAKE_CUDA_OTHER=%d", c.Other), fmt.Sprintf("FAKE_CUDA_SHIFT=%d", c.PIDShift),
	}
}

func list[T int | int64](numbers []T) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.FormatInt(int64(n), 10)
	}
	return strings.Join(texts, ",")
}

// Calls are the calls that this process has made so far, each the function and a few arguments with blanks between.
func Calls(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(os.Getenv(logVariable))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// Count is how many of the calls there are to a function.
func Count(calls []string, function string) int {
	n := 0
	for _, c := range calls {
		if name, _, _ := strings.Cut(c, " "); name == function {
			n++
		}
	}
	return n
}

//go:embed src
var sources embed.FS

var folders []string // of the fake, removed by Main

// write puts a source into a folder of what is compiled, and returns its path.
func write(dir, name string) (string, error) {
	text, err := sources.ReadFile("src/" + name)
	if err != nil {
		return "", err
	}
	if name == "fake.c" {
		// Functions that the driver has and the fake does not fail as not supported.
		for _, f := range cuda.Symbols() {
			if !bytes.Contains(text, []byte(" "+f+"(")) {
				text = fmt.Appendf(text, "int %s(void) { CALL(\"\"); return 801; }\n", f)
			}
		}
	}
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, text, 0o600)
}

// compile makes a library of sources, in a folder of its own.
func compile(library string, names ...string) (dir string, err error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "fakecuda"); err != nil {
		return "", err
	}
	folders = append(folders, dir)
	args := []string{"-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, library)}
	for _, name := range names {
		path, err := write(dir, name)
		if err != nil {
			return "", err
		}
		args = append(args, path)
	}
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("fakecuda: gcc: %w:\n%s", err, out)
	}
	return dir, nil
}

// build compiles the driver, once a process.
var build = sync.OnceValues(func() (dir string, err error) {
	if dir, err = compile("libcuda.so.1", "fake.c", "blocks.c"); err != nil {
		return "", err
	}
	// The same file under both names is one library in memory.
	return dir, os.Symlink(filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libnvidia-ml.so.1"))
})

// buildNCCL compiles NCCL.
var buildNCCL = sync.OnceValues(func() (dir string, err error) { return compile("libnccl.so.2", "nccl.c") })

// buildCompiler compiles the compiler, with its header ready for it. That takes the flags of nvrtc.c, which insists on it: every kernel would take three times as long.
var buildCompiler = sync.OnceValues(func() (dir string, err error) {
	gpp, err := exec.LookPath("g++")
	if err != nil {
		return "", err
	}
	if dir, err = compile("libnvrtc.so.13", "nvrtc.c"); err != nil {
		return "", err
	}
	if _, err := write(dir, "instructions.h"); err != nil {
		return "", err
	}
	header, err := write(dir, "kernel.h")
	if err != nil {
		return "", err
	}
	if out, err := exec.Command(gpp, "-std=c++17", "-pedantic-errors", "-O1", "-fPIC", "-fno-gnu-unique", "-x", "c++-header", header).CombinedOutput(); err != nil {
		return "", fmt.Errorf("fakecuda: g++: %w:\n%s", err, out)
	}
	return dir, nil
})

// Main is a TestMain that removes what the tests compiled.
func Main(m *testing.M) {
	code := m.Run()
	for _, dir := range folders {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
