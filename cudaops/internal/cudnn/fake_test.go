package cudnn

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops/internal/cache"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// fake is a library that writes down how it is called; see testdata/fake.c.
type fake struct {
	*Library
	log    func() string
	live   func() uint64
	refuse func(on int32)
}

func openFake(t *testing.T) *fake {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to compile the fake library with")
	}
	t.Setenv(cache.Variable, t.TempDir())
	path := filepath.Join(t.TempDir(), "libfake.so")
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, "testdata/fake.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	f := &fake{}
	if f.Library, err = open(path); err != nil {
		t.Fatal(err)
	}
	for name, fn := range map[string]any{"fakeLog": &f.log, "fakeLive": &f.live, "fakeRefuse": &f.refuse} {
		if err := f.lib.Bind(fn, name); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *fake) handle(t *testing.T) *Handle {
	t.Helper()
	h, err := f.on(&cuda.Card{Stream: 0x77}, "a card")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestArguments: what reaches the library for a convolution with bias and ReLU, in groups.
func TestArguments(t *testing.T) {
	f := openFake(t)
	if v := f.Version(); v != 91501 {
		t.Errorf("version %d", v)
	}
	h := f.handle(t)
	c := small(Forward)
	c.Bias, c.Relu, c.TF32 = true, true, true
	p, err := h.Conv(c)
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Workspace(); n != 1000 {
		t.Errorf("workspace of %d bytes", n)
	}
	run := func() {
		t.Helper()
		if err := p.Run(0x1000, 0x2000, 0x3000, 0x4000, 0x5000); err != nil {
			t.Fatal(err)
		}
	}
	run()
	f.refuse(1)
	run()
	want := `stream 0x77
tensor 0x120 format 0 type 0 1 6 1 1
filter 0x130 format 0 type 0 6 2 3 5
convolution 0x140 padding 1 3 stride 2 1 dilation 1 2 mode 1 type 0
groups 2
activation 1 nan 1 0
math 1
tensor 0x160 format 0 type 0 2 4 9 11
tensor 0x170 format 0 type 0 2 6 5 9
Forward offers for 0x160 0x130 0x140 0x170, 16 at most
math 1
math 1
math 1
math 1
fused 1 0x160:0x1000 0x130:0x2000 0x140 algo 1 workspace 0x5000 (1000) 0 z 0x170:0x3000 bias 0x120:0x4000 0x170:0x3000
Forward 1 0x160:0x1000 0x130:0x2000 0x140 algo 1 workspace 0x5000 (1000) 0 0x170:0x3000
add 1 0x120:0x4000 1 0x170:0x3000
activate 1 0x170:0x3000 0 0x170:0x3000
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

func TestGradients(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	for kind, want := range map[Kind]string{
		GradX: "BackwardData 1 W:0x2000 Y:0x3000 C algo 1 workspace 0x5000 (1000) 0 X:0x1000",
		GradW: "BackwardFilter 1 X:0x1000 Y:0x3000 C algo 1 workspace 0x5000 (1000) 0 W:0x2000",
	} {
		p, err := h.Conv(small(kind))
		if err != nil {
			t.Fatal(err)
		}
		if log := f.log(); strings.Count(log, "math 3\n") != strings.Count(log, "math ") {
			t.Errorf("%s: exact float32 is not all that is asked for:\n%s", kind, log)
		}
		if err := p.Run(0x1000, 0x2000, 0x3000, 0, 0x5000); err != nil {
			t.Fatal(err)
		}
		name := func(d uintptr) string { return fmt.Sprintf("%#x", d) }
		got := strings.NewReplacer(name(p.batches[0].x), "X", name(p.w), "W", name(p.batches[0].y), "Y", name(p.window), "C").Replace(strings.TrimSpace(f.log()))
		if got != want {
			t.Errorf("%s:\n%s, want\n%s", kind, got, want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNothingWithinLimits(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	h.MaxWorkspace = -1
	_, err := h.Conv(small(GradW))
	if !Unsupported(err) {
		t.Errorf("%v", err)
	}
	if want := "CUDNN_STATUS_NOT_SUPPORTED (3000): nothing deterministic with at most -1 bytes"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q in it", err, want)
	}
	if n := f.live(); n != 1 {
		t.Errorf("%d objects of the library are left beside the handle", n-1)
	}
}

// TestInPieces: where an algorithm needs too much workspace for the whole batch, it does one piece after the other.
func TestInPieces(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	h.MaxWorkspace, h.leastPiece = 5<<28, 0
	for _, c := range []struct {
		kind Kind
		want string
	}{
		{Forward, `Forward 1 X2:0x100000 W:0x200000 C algo 7 workspace 0x500000 (536870912) 0 Y2:0x300000
add 1 B:0x400000 1 Y2:0x300000
Forward 1 X2:0x100c60 W:0x200000 C algo 7 workspace 0x500000 (536870912) 0 Y2:0x300870
add 1 B:0x400000 1 Y2:0x300870
Forward 1 X2:0x1018c0 W:0x200000 C algo 7 workspace 0x500000 (536870912) 0 Y2:0x3010e0
add 1 B:0x400000 1 Y2:0x3010e0
Forward 1 X1:0x102520 W:0x200000 C algo 7 workspace 0x500000 (536870912) 0 Y1:0x301950
add 1 B:0x400000 1 Y1:0x301950
`},
		{GradX, `BackwardData 1 W:0x200000 Y2:0x300000 C algo 7 workspace 0x500000 (536870912) 0 X2:0x100000
BackwardData 1 W:0x200000 Y2:0x300870 C algo 7 workspace 0x500000 (536870912) 0 X2:0x100c60
BackwardData 1 W:0x200000 Y2:0x3010e0 C algo 7 workspace 0x500000 (536870912) 0 X2:0x1018c0
BackwardData 1 W:0x200000 Y1:0x301950 C algo 7 workspace 0x500000 (536870912) 0 X1:0x102520
`},
		{GradW, `BackwardFilter 1 X2:0x100000 Y2:0x300000 C algo 7 workspace 0x500000 (536870912) 0 W:0x200000
BackwardFilter 1 X2:0x100c60 Y2:0x300870 C algo 7 workspace 0x500000 (536870912) 1 W:0x200000
BackwardFilter 1 X2:0x1018c0 Y2:0x3010e0 C algo 7 workspace 0x500000 (536870912) 1 W:0x200000
BackwardFilter 1 X1:0x102520 Y1:0x301950 C algo 7 workspace 0x500000 (536870912) 1 W:0x200000
`},
	} {
		q := small(c.kind)
		q.X[0], q.Y[0], q.Bias, q.TF32 = 7, 7, c.kind == Forward, true
		p, err := h.Conv(q)
		if err != nil {
			t.Fatal(err)
		}
		// Pieces of 4 would need too much, and others begin at no multiple of 16 bytes.
		if want := (offer{algo: 7, math: mathTensorOp, samples: 2, bytes: 2 << 28}); p.by != want || p.offers[1].samples != 7 {
			t.Errorf("%v: %+v is chosen of %+v", c.kind, p.by, p.offers)
		}
		f.log()
		if err := p.Run(0x100000, 0x200000, 0x300000, 0x400000, 0x500000); err != nil {
			t.Fatal(err)
		}
		names := []string{fmt.Sprintf("%#x:", p.bias), "B:", fmt.Sprintf("%#x:", p.w), "W:", fmt.Sprintf("%#x ", p.window), "C "}
		for _, b := range p.batches {
			names = append(names, fmt.Sprintf("%#x:", b.x), fmt.Sprintf("X%d:", b.samples), fmt.Sprintf("%#x:", b.y), fmt.Sprintf("Y%d:", b.samples))
		}
		if diff := cmp.Diff(c.want, strings.NewReplacer(names...).Replace(f.log())); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.kind, diff)
		}
		// How the batch is cut is remembered with the algorithm.
		h.measure = func(run func() error) (float64, error) { return float64(9 - p.by.algo), run() }
		if err := p.Tune(0x100000, 0x200000, 0x300000, 0x400000, 0x500000, p.TuneWorkspace()); err != nil {
			t.Fatal(err)
		}
		again, err := h.Conv(q)
		if err != nil || !again.made || again.by != p.by {
			t.Errorf("%v: %+v is remembered, %v", c.kind, again.by, err)
		}
		if err := errors.Join(p.Close(), again.Close()); err != nil {
			t.Error(err)
		}
	}
	if n := f.live(); n != 1 {
		t.Errorf("%d objects of the library are left beside the handle", n-1)
	}
}

// TestFewestPieces: an algorithm has as few pieces as its workspace allows, if those are worth a call.
func TestFewestPieces(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	h.MaxWorkspace = 64 << 28
	for _, c := range []struct {
		batch, least int
		want         []int // samples a piece, by offer
	}{
		{64, 0, []int{64, 64, 64}},
		{65, 0, []int{17, 65, 65}},
		{256, 0, []int{32, 256, 256}},
		{256, 32, []int{32, 256, 256}},
		{256, 33, []int{256, 256}},
	} {
		q := conv(Forward, [4]int{c.batch, 4, 4, 4}, [4]int{4, 4, 1, 1}, [2]int{1, 1}, [2]int{}, [2]int{1, 1}, 1)
		q.TF32 = true
		h.leastPiece = int64(c.least * 4 * 2 * sample(q.X))
		p, err := h.Conv(q)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, o := range p.offers {
			got = append(got, o.samples)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestManyNumbers: more than the library takes in one tensor.
func TestManyNumbers(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	p, err := h.Conv(conv(Forward, [4]int{4096, 64, 112, 112}, [4]int{64, 64, 1, 1}, [2]int{1, 1}, [2]int{}, [2]int{1, 1}, 1))
	if err != nil {
		t.Fatal(err)
	}
	if p.by != (offer{algo: 1, math: mathFMA, samples: 2048, bytes: 1000}) {
		t.Errorf("%+v is chosen", p.by)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := h.Conv(conv(Forward, [4]int{1, 1, 1 << 16, 1 << 16}, [4]int{1, 1, 1, 1}, [2]int{1, 1}, [2]int{}, [2]int{1, 1}, 1)); !Unsupported(err) {
		t.Errorf("%v for one sample that is too large", err)
	}
}

// tune plans a convolution with bias, and tunes it with a workspace. times are what the offers that have a place will take; when there are none
// nothing may be measured.
func tune(t *testing.T, h *Handle, bytes int64, times ...float64) *Plan {
	t.Helper()
	measured := 0
	h.measure = func(run func() error) (float64, error) {
		if len(times) == 0 {
			t.Fatal("measured again")
		}
		err := run()
		measured++
		return times[(measured-1)%len(times)], err
	}
	c := small(Forward)
	c.Bias = true
	p, err := h.Conv(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Tune(0x1000, 0x2000, 0x3000, 0x4000, 0x5000, bytes); err != nil {
		t.Fatal(err)
	}
	if len(times) > 0 && measured == 0 {
		t.Error("not measured")
	}
	return p
}

func TestTune(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	// Offers are algorithm 1 fused, 1 alone, and 0, which needs no workspace.
	p := tune(t, h, 1000, 9, 5, 1)
	if want := (offer{algo: 0, math: mathFMA, samples: 2}); p.by != want || p.Workspace() != 0 || p.TuneWorkspace() != 0 {
		t.Errorf("%+v is chosen, workspace %d", p.by, p.Workspace())
	}
	if again := tune(t, h, 1000); again.by != p.by {
		t.Errorf("%+v is remembered", again.by)
	}
	other := *h
	other.name = "another card"
	if p := tune(t, &other, 1000, 9, 1, 5); p.by != (offer{algo: 1, math: mathFMA, samples: 2, bytes: 1000}) {
		t.Errorf("%+v is chosen on another card", p.by)
	}
	third := *h
	third.name = "a third card"
	if p := tune(t, &third, 999, 1); p.by.algo != 0 {
		t.Errorf("%+v is chosen with little workspace", p.by)
	}
	fourth := *h
	fourth.name = "a fourth card"
	f.refuse(1)
	if p := tune(t, &fourth, 1000, 1, 5, 9); p.by.fused || p.by.algo != 1 {
		t.Errorf("%+v is chosen where none is fused", p.by)
	}
}

// TestTuneWithoutSpace: a plan that nothing can be tried for stays as it was.
func TestTuneWithoutSpace(t *testing.T) {
	f := openFake(t)
	p, err := f.handle(t).Conv(small(Forward))
	if err != nil {
		t.Fatal(err)
	}
	before := p.by
	if err := p.Tune(0x1000, 0x2000, 0x3000, 0x4000, 0, -1); err == nil || p.by != before {
		t.Errorf("%+v is chosen, %v", p.by, err)
	}
}

func TestTuneOff(t *testing.T) {
	f := openFake(t)
	t.Setenv(cache.Variable, "off")
	f.remembers = choices.Open("cudnn")
	p := tune(t, f.handle(t), 1000)
	if want := (offer{algo: 1, math: mathFMA, fused: true, samples: 2, bytes: 1000}); p.by != want || p.TuneWorkspace() != 1000 {
		t.Errorf("%+v is chosen", p.by)
	}
}

func TestRememberedNonsense(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	c := small(Forward)
	c.Bias = true
	p, err := h.Conv(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range [][]byte{(offer{algo: 6, math: mathFMA, samples: 2}).encode(), {}, []byte("nonsense")} {
		if _, ok := f.remembers.Put(p.key(), kept, func([]byte) bool { return false }); !ok {
			t.Fatal("nothing is kept")
		}
		if got := tune(t, h, 1000, 9, 5, 1); got.by.algo != 0 {
			t.Errorf("%v was remembered, %+v is chosen", kept, got.by)
		}
	}
}

// TestRoom: a convolution that has less room than the handle allows does with algorithms that need no more, and what is remembered for one room is
// not for another.
func TestRoom(t *testing.T) {
	f := openFake(t)
	h := f.handle(t)
	h.measure = func(run func() error) (float64, error) { return 1, run() }
	for _, c := range []struct {
		room int64
		want []int32 // algorithms
	}{{0, []int32{1, 0}}, {1000, []int32{1, 0}}, {999, []int32{0}}} {
		q := small(GradW)
		q.TF32, q.Room = true, c.room
		p, err := h.Conv(q)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for _, o := range p.offers {
			got = append(got, o.algo)
		}
		if !slices.Equal(got, c.want) || p.Tuned() {
			t.Errorf("with room for %d bytes: algorithms %v, tuned %t; want %v", c.room, got, p.Tuned(), c.want)
		}
		if err := p.Tune(0x1000, 0x2000, 0x3000, 0, 0x5000, p.TuneWorkspace()); err != nil {
			t.Fatal(err)
		}
	}
}
