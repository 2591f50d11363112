package cublas

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops/internal/cache"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// fake is a library that writes down how it is called; see testdata/fake.c.
type fake struct {
	*Library
	log    func() string
	live   func() uint64
	refuse func(on int32)
	// clusters sets the shape of algorithm 2's, 0 for none.
	clusters func(shape int32)
}

func openFake(t *testing.T) *fake {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to compile the fake library with")
	}
	t.Setenv(cache.Variable, t.TempDir())
	path := filepath.Join(t.TempDir(), "libfake.so")
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-int-to-pointer-cast", "-o", path, "testdata/fake.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	f := &fake{}
	if f.Library, err = open(path); err != nil {
		t.Fatal(err)
	}
	for name, fn := range map[string]any{"fakeLog": &f.log, "fakeLive": &f.live, "fakeRefuse": &f.refuse, "fakeClusters": &f.clusters} {
		if err := f.lib.Bind(fn, name); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *fake) handle(t *testing.T) *Handle {
	t.Helper()
	h, err := f.on(&cuda.Card{Stream: 0x77}, "a card", 0x5000, 4096)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestArguments: what reaches the library for a batched product with a transposed operand, bias and ReLU.
func TestArguments(t *testing.T) {
	f := openFake(t)
	if v := f.Version(); v != 130100 {
		t.Errorf("version %d", v)
	}
	h := f.handle(t)
	p, err := h.Plan(Product{Batch: 2, M: 3, N: 5, K: 7, A: Matrix{1, 3, 21}, B: Matrix{6, 1, 42}, C: Matrix{5, 1, 15}, Bias: true, Relu: true, TF32: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(0x1000, 0x2000, 0x3000, 0x4000); err != nil {
		t.Fatal(err)
	}
	h.SetStream(0x88)
	if err := p.Run(0x1000, 0x2000, 0x3004, 0x4000); err != nil {
		t.Fatal(err)
	}
	if n := p.Workspace(); n != 1000 {
		t.Errorf("workspace of %d bytes", n)
	}
	p.SetWorkspace(0x9000)
	if err := p.Run(0x1000, 0x2000, 0x3000, 0x4000); err != nil {
		t.Fatal(err)
	}
	want := `desc 77 0
desc 7 = 6 (4)
desc 4 = 1 (4)
layout type 0 3x7 ld 3
layout 5 = 2 (4)
layout 6 = 21 (8)
layout type 0 5x7 ld 6
layout 5 = 2 (4)
layout 6 = 42 (8)
layout type 0 5x3 ld 5
layout 5 = 2 (4)
layout 6 = 15 (8)
desc 8 = 16 (8)
pref 1 = 4096 (8)
pref 3 = 2 (4)
pref 5 = 16 (4)
pref 6 = 16 (4)
pref 7 = 16 (4)
pref 8 = 16 (4)
heuristic of 16, a before b 0, c is out 1
desc 8 = 4 (8)
pref 1 = 4096 (8)
pref 3 = 2 (4)
pref 5 = 4 (4)
pref 6 = 4 (4)
pref 7 = 4 (4)
pref 8 = 4 (4)
heuristic of 16, a before b 0, c is out 1
desc 8 = 16384 (8)
matmul 1 a 0x2000 b 0x1000 0 c 0x3000 d 0x3000 algo 1 workspace 0x5000 (1000) stream 0x77 layouts 11
matmul 1 a 0x2000 b 0x1000 0 c 0x3004 d 0x3004 algo 1 workspace 0x5000 (1000) stream 0x88 layouts 11
matmul 1 a 0x2000 b 0x1000 0 c 0x3000 d 0x3000 algo 1 workspace 0x9000 (1000) stream 0x88 layouts 11
`
	if diff := cmp.Diff(want, f.log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if err := errors.Join(p.Close(), p.Close(), h.Close()); err != nil {
		t.Error(err)
	}
	if n := f.live(); n != 0 {
		t.Errorf("%d objects of the library are left", n)
	}
}

func TestTypes(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	if _, err := h.Plan(Product{M: 3, N: 5, K: 7, A: Matrix{7, 1, 0}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 0}, In: ir.BF16, BiasGrad: SumB, TF32: true}); err != nil {
		t.Fatal(err)
	}
	log := f.log()
	for _, want := range []string{"desc 68 0\n", "desc 7 = 256 (4)\n", "layout type 14 7x3 ld 7\n", "layout type 14 5x7 ld 5\n", "layout type 0 5x3 ld 5\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in\n%s", want, log)
		}
	}
}

func TestUnsupported(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	f.refuse(1)
	_, err := h.Plan(Product{M: 3, N: 5, K: 7, A: Matrix{7, 1, 0}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 0}})
	if !Unsupported(err) {
		t.Errorf("%v", err)
	}
	if want := "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED (15): not supported"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q in it", err, want)
	}
	if _, err := h.Plan(Product{M: 3, N: 5, K: 7, A: Matrix{7, 2, 0}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 0}}); !errors.Is(err, ErrLayout) || Unsupported(err) {
		t.Errorf("%v", err)
	}
	if n := f.live(); n != 1 {
		t.Errorf("%d objects of the library are left beside the handle", n-1)
	}
}

// tunable plans and tunes a product on a handle. times are what the algorithms that have a place will take; when there are none nothing may be
// measured.
func tunable(t *testing.T, h *Handle, times ...float64) *Plan {
	t.Helper()
	measured := 0
	h.measure = func(_ choices.Pace, run func() error) (float64, error) {
		if len(times) == 0 {
			t.Fatal("measured again")
		}
		measured++
		return times[(measured-1)%len(times)], run()
	}
	p, err := h.Plan(Product{M: 3, N: 5, K: 7, A: Matrix{7, 1, 0}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 0}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Tune(0x1000, 0x2000, 0x3000, 0); err != nil {
		t.Fatal(err)
	}
	if len(times) > 0 && measured == 0 {
		t.Error("not measured")
	}
	return p
}

func TestTuneRemembers(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	p := tunable(t, h, 3, 1) // the first of the three has no place
	if a := p.choice[0].algo[0]; a != 2 {
		t.Errorf("algorithm %d is chosen", a)
	}
	if a := p.choice[1].algo[0]; a != 1 {
		t.Errorf("algorithm %d is chosen for buffers of another alignment", a)
	}
	// Another process finds it, and measures nothing.
	if a := tunable(t, h).choice[0].algo[0]; a != 2 {
		t.Errorf("algorithm %d is remembered", a)
	}
	// Another card, and another workspace, are another matter.
	other := *h
	other.name = "another card"
	if a := tunable(t, &other, 1, 3).choice[0].algo[0]; a != 1 {
		t.Errorf("algorithm %d is chosen on another card", a)
	}
}

// TestSwizzled: of heavy work algorithms are tried in another order of tiles as well, and remembered with it.
func TestSwizzled(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	measured := map[string]int{}
	h.measure = func(_ choices.Pace, run func() error) (float64, error) {
		err := run()
		_, algorithm, _ := strings.Cut(f.log(), " algo ")
		algorithm, _, _ = strings.Cut(algorithm, " workspace")
		measured[algorithm]++
		if algorithm == "1 swizzled" {
			return 1, err
		}
		return 1.02, err
	}
	const n = 4096
	heavy := Product{M: n, N: n, K: n, A: Matrix{n, 1, 0}, B: Matrix{n, 1, 0}, C: Matrix{n, 1, 0}}
	for range 2 { // another process finds it, and measures nothing
		p, err := h.Plan(heavy)
		if err != nil {
			t.Fatal(err)
		}
		f.log()
		if err := p.Tune(0x1000, 0x2000, 0x3000, 0); err != nil {
			t.Fatal(err)
		}
		if got := p.choice[0].algo; got[0] != 1 || got[1] == 0 {
			t.Errorf("algorithm %v is chosen", got)
		}
		if len(measured) != 0 && (len(measured) != 3 || measured["1"] == 0 || measured["2"] == 0) {
			t.Errorf("measured: %v", measured)
		}
		clear(measured)
		h.measure = func(choices.Pace, func() error) (float64, error) { t.Error("measured again"); return 1, nil }
	}
	if p := tunable(t, f.handle(t), 1, 1); len(p.choice[0].offers) != 2 {
		t.Errorf("of work that is not heavy there are %d to choose from", len(p.choice[0].offers))
	}
}

// TestPaired: an algorithm that has clusters of blocks is tried with pairs, each shape once, where that fits, and remembered so. Heavy work is not.
func TestPaired(t *testing.T) {
	small := Product{M: 3, N: 5, K: 7, A: Matrix{7, 1, 0}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 0}, Aligned: true}
	heavy := Product{M: 4096, N: 4096, K: 4096, A: Matrix{4096, 1, 0}, B: Matrix{4096, 1, 0}, C: Matrix{4096, 1, 0}, Aligned: true}
	tight := small
	tight.Room = 2004 // bytes: of the pairs, only those below each other need no more
	for _, c := range []struct {
		product  Product
		clusters int32
		want     string
	}{
		{small, 0, "1, 2"},
		{small, 2, "1, 2, 2 below, 2 beside"},
		{tight, 2, "1, 2, 2 below"},
		{heavy, 2, "1 swizzled, 1, 2"},
	} {
		f := openFake(t)
		f.clusters(c.clusters)
		h := f.handle(t)
		var measured []string
		h.measure = func(_ choices.Pace, run func() error) (float64, error) {
			err := run()
			_, algorithm, _ := strings.Cut(f.log(), " algo ")
			algorithm, _, _ = strings.Cut(algorithm, " workspace")
			if !slices.Contains(measured, algorithm) {
				measured = append(measured, algorithm)
			}
			return map[bool]float64{true: 1, false: 1.2}[algorithm == "2 below"], err
		}
		for range 2 { // another process finds the fastest
			p, err := h.Plan(c.product)
			if err != nil {
				t.Fatal(err)
			}
			f.log()
			if err := p.Tune(0x1000, 0x2000, 0x3000, 0); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(measured, ", "); got != c.want {
				t.Errorf("%v, clusters %d: measured %s, want %s", p, c.clusters, got, c.want)
			}
			if below := p.choice[0].algo[2] == 3; below != strings.Contains(c.want, "below") {
				t.Errorf("%v, clusters %d: algorithm %v is chosen", p, c.clusters, *p.choice[0].algo)
			}
			h.measure = func(choices.Pace, func() error) (float64, error) { t.Error("measured again"); return 1, nil }
		}
	}
}

// TestTuneTogether: a rank that measures at the same time as another takes what was kept first.
func TestTuneTogether(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	slow, err := h.Plan(Product{M: 3, N: 5, K: 7, A: Matrix{7, 1, 0}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 0}})
	if err != nil {
		t.Fatal(err)
	}
	tunable(t, h, 3, 1)
	h.measure = func(choices.Pace, func() error) (float64, error) { return 1, nil }
	if err := slow.Tune(0x1000, 0x2000, 0x3000, 0); err != nil {
		t.Fatal(err)
	}
	if a := slow.choice[0].algo[0]; a != 2 {
		t.Errorf("algorithm %d is chosen", a)
	}
}

func TestTuneOff(t *testing.T) {
	f := openFake(t)
	t.Setenv(cache.Variable, "off")
	f.remembers = choices.Open("cublaslt")
	if a := tunable(t, f.handle(t)).choice[0].algo[0]; a != 1 {
		t.Errorf("algorithm %d is chosen", a)
	}
}

// TestRememberedNonsense: what the library does not accept is measured again and replaced.
func TestRememberedNonsense(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	p := tunable(t, h, 3, 1)
	files, err := filepath.Glob(filepath.Join(os.Getenv(cache.Variable), "algorithms", "cublaslt", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	unknown := (&algorithm{9}).bytes()
	for name, value := range map[string][]byte{"unknown": unknown, "short": unknown[:63], "empty": {}} {
		if err := os.Remove(files[0]); err != nil {
			t.Fatal(err)
		}
		if _, ok := f.remembers.Put(p.key(&p.choice[0]), value, func([]byte) bool { return true }); !ok {
			t.Fatal("nothing is kept")
		}
		if a := tunable(t, h, 3, 1).choice[0].algo[0]; a != 2 {
			t.Errorf("%s: algorithm %d is chosen", name, a)
		}
		if kept, ok := f.remembers.Get(p.key(&p.choice[0])); !ok || !bytes.Equal(kept, (&algorithm{2}).bytes()) {
			t.Errorf("%s: %v, %v is kept", name, kept, ok)
		}
	}
}

// TestRoom: a product that has less room than the handle allows does with algorithms that need no more, and what is remembered for one room is not for
// another.
func TestRoom(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	tunable(t, h, 3, 1)
	h.measure = func(_ choices.Pace, run func() error) (float64, error) { return 1, run() }
	for _, c := range []struct {
		room int64
		want int64 // bytes; -1: there is none
	}{{0, 2000}, {1999, 1000}, {1000, 1000}, {999, -1}} {
		p, err := h.Plan(Product{M: 3, N: 5, K: 7, A: Matrix{7, 1, 0}, B: Matrix{5, 1, 0}, C: Matrix{5, 1, 0}, Room: c.room})
		if c.want < 0 {
			if !Unsupported(err) {
				t.Errorf("with room for %d bytes: %v", c.room, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.MostWorkspace() != c.want {
			t.Errorf("with room for %d bytes: %d bytes at most, want %d", c.room, p.MostWorkspace(), c.want)
		}
		if tuned := p.Tuned(0x1000, 0x2000, 0x3000, 0); tuned != (c.room == 0) {
			t.Errorf("with room for %d bytes: tuned %t", c.room, tuned)
		}
	}
}
