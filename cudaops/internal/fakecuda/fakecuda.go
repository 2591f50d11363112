// Package fakecuda gives tests a CUDA driver, an NVML and an NCCL without a card, so that all of the code that talks to them runs: what loads
// them, allocates, copies, and makes errors of codes.
//
// The fakes are C (src/fake.c, src/nccl.c), compiled with gcc when the tests start. A test that wants it begins with
//
//	if !fakecuda.In(t, fakecuda.Config{...}) {
//		return
//	}
//
// since a process has one driver, which reads its environment once: [In] runs the test again in a process of its own, gives false in the
// first process, and true in the second. Tests without gcc are skipped. The package's TestMain calls [Main].
//
// The fake does what is in a stream as late as possible, and ends the process for what no card would survive. Kernels do nothing.
package fakecuda

import (
	_ "embed"
	"errors"
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
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("the fake CUDA driver takes gcc: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	cmd := exec.Command(os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.v")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CUDA_") || strings.HasPrefix(v, "TANDEM_")
	})
	if c.NCCL {
		dir += string(os.PathListSeparator) + filepath.Join(dir, ncclFolder)
	}
	cmd.Env = append(cmd.Env, childVariable+"="+t.Name(), "TANDEM_CUDA_PATH="+dir, "GORACE=atexit_sleep_ms=0", logVariable+"="+filepath.Join(t.TempDir(), "calls"))
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
	return []string{
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

//go:embed src/fake.c
var source string

//go:embed src/nccl.c
var ncclSource string

// ncclFolder is where NCCL is, in the fake's folder, so that only those find it who are to.
const ncclFolder = "nccl"

var folder string // of the fake, removed by Main

// build compiles the fake, once a process. Functions that the driver has and the fake does not fail as not supported.
var build = sync.OnceValues(func() (dir string, err error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "fakecuda"); err != nil {
		return "", err
	}
	folder = dir
	code := source
	for _, name := range cuda.Symbols() {
		if !strings.Contains(source, " "+name+"(") {
			code += fmt.Sprintf("int %s(void) { CALL(\"\"); return 801; }\n", name)
		}
	}
	lib := filepath.Join(dir, "libcuda.so.1")
	if err := compile(gcc, code, lib); err != nil {
		return "", err
	}
	nccl := filepath.Join(dir, ncclFolder)
	if err := os.Mkdir(nccl, 0o700); err != nil {
		return "", err
	}
	if err := compile(gcc, ncclSource, filepath.Join(nccl, "libnccl.so.2")); err != nil {
		return "", err
	}
	// The same file under both names is one library in memory.
	return dir, os.Symlink(lib, filepath.Join(dir, "libnvidia-ml.so.1"))
})

// compile makes a library of C.
func compile(gcc, code, lib string) error {
	file := lib + ".c"
	if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
		return err
	}
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-O1", "-o", lib, file).CombinedOutput(); err != nil {
		return fmt.Errorf("fakecuda: gcc: %w:\n%s", err, out)
	}
	return nil
}

// Main is a TestMain that removes what the tests compiled.
func Main(m *testing.M) {
	code := m.Run()
	if err := os.RemoveAll(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
