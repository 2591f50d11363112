package nn

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"gorgonia.org/tensor"
)

func initialized(t testing.TB, m Module, seed uint64) Module {
	t.Helper()
	if err := Initialize(m, seed); err != nil {
		t.Fatal(err)
	}
	return m
}

func smallNet() Module {
	return Sequential(Linear(3, 2), BatchNorm1d(2), ReLU(), Linear(2, 1, NoBias()))
}

func sameState(t *testing.T, a, b Module) {
	t.Helper()
	x, err := StateDict(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := StateDict(b)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(x.Names(), y.Names()) {
		t.Fatalf("names %v and %v differ", x.Names(), y.Names())
	}
	for name, v := range x.All() {
		p, _ := floats(v)
		q, _ := floats(y.Get(name))
		if !slices.Equal(p, q) || !slices.Equal(v.Shape(), y.Get(name).Shape()) {
			t.Errorf("%s is %v %v, want %v %v", name, y.Get(name).Shape(), q, v.Shape(), p)
		}
	}
}

func TestStateDict(t *testing.T) {
	a := initialized(t, smallNet(), 1)
	s, err := StateDict(a)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
	if !slices.Equal(s.Names(), want) {
		t.Errorf("names are %v, want %v", s.Names(), want)
	}
	b := smallNet()
	if err := LoadStateDict(b, s, true); err != nil {
		t.Fatal(err)
	}
	sameState(t, a, b)
	// It is a copy.
	s.Get("0.bias").Data().([]float32)[0] = 99
	if a.(*SequentialModel).Modules[0].(*LinearLayer).Bias.Data()[0] == 99 {
		t.Error("a change of the state dict changed the model")
	}
	if _, err := StateDict(smallNet()); err == nil || !strings.Contains(err.Error(), "parameter 0.weight has no value yet") {
		t.Errorf("error is %v", err)
	}
}

func TestLoadStateDict(t *testing.T) {
	state := func(change func(*State)) *State {
		s, err := StateDict(initialized(t, Sequential(Linear(2, 2)), 1))
		if err != nil {
			t.Fatal(err)
		}
		change(s)
		return s
	}
	vec := func(x any, dims ...int) *tensor.Dense {
		return tensor.New(tensor.WithShape(dims...), tensor.WithBacking(x))
	}
	for _, c := range []struct {
		name   string
		s      *State
		strict bool
		want   string // error; empty for none
	}{
		{"as it is", state(func(*State) {}), true, ""},
		{"another tensor", state(func(s *State) { s.Set("1.bias", vec([]float32{1}, 1)) }), true, "unexpected 1.bias"},
		{"another tensor, not strict", state(func(s *State) { s.Set("1.bias", vec([]float32{1}, 1)) }), false, ""},
		{"nothing", new(State), true, "missing 0.weight, 0.bias"},
		{"nothing, not strict", new(State), false, ""},
		{"another shape", state(func(s *State) { s.Set("0.bias", vec([]float32{1, 2, 3}, 3)) }), false, "0.bias is [3], not [2]"},
		{"a row", state(func(s *State) { s.Set("0.bias", vec([]float32{1, 2}, 1, 2)) }), false, "0.bias is [1,2], not [2]"},
		{"truth values", state(func(s *State) { s.Set("0.bias", vec([]bool{true, false}, 2)) }), true, "0.bias is of bool"},
		{"float64", state(func(s *State) { s.Set("0.bias", vec([]float64{1, 2}, 2)) }), true, ""},
		{"int64", state(func(s *State) { s.Set("0.bias", vec([]int64{1, 2}, 2)) }), true, ""},
		{"int32", state(func(s *State) { s.Set("0.bias", vec([]int32{1, 2}, 2)) }), true, ""},
		{"everything wrong", state(func(s *State) {
			s.names = s.names[1:]
			s.Set("0.bias", vec([]float32{1}, 1))
			s.Set("x", vec([]float32{1}, 1))
		}), true, "missing 0.weight; unexpected x; 0.bias is [1], not [2]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := initialized(t, Sequential(Linear(2, 2)), 2)
			before, err := StateDict(m)
			if err != nil {
				t.Fatal(err)
			}
			err = LoadStateDict(m, c.s, c.strict)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var wrong *StateError
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is %v, want %q", err, c.want)
			}
			fresh := Sequential(Linear(2, 2))
			if err := LoadStateDict(fresh, before, true); err != nil {
				t.Fatal(err)
			}
			sameState(t, fresh, m) // nothing was loaded
		})
	}
}

func TestLoadNothing(t *testing.T) {
	if err := LoadStateDict(Linear(2, 2), nil, false); err == nil || err.Error() != "nn: load: the state is nil" {
		t.Errorf("error is %v", err)
	}
}

func TestLoadConverts(t *testing.T) {
	m := Linear(2, 2)
	s := new(State)
	// A transposed view: its elements lie in another order than they count.
	w := tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]float64{1, 2, 3, 4}))
	if err := w.T(); err != nil {
		t.Fatal(err)
	}
	s.Set("module.weight", w)
	s.Set("module.bias", tensor.New(tensor.WithShape(2), tensor.WithBacking([]int64{5, -6})))
	if err := LoadStateDict(m, s, true); err != nil {
		t.Fatal(err)
	}
	if want := []float32{1, 3, 2, 4}; !slices.Equal(m.Weight.Data(), want) {
		t.Errorf("weight is %v, want %v", m.Weight.Data(), want)
	}
	if want := []float32{5, -6}; !slices.Equal(m.Bias.Data(), want) {
		t.Errorf("bias is %v, want %v", m.Bias.Data(), want)
	}
}

// A model may have a module called "module": then that is no prefix.
func TestLoadModuleOfThatName(t *testing.T) {
	model := func() Module {
		return &struct {
			*SequentialModel `nn:"-"`
			Module           *LinearLayer
			Gain             *Parameter
		}{Module: Linear(2, 1), Gain: NewParameter(Uniform(-1, 1), 2)}
	}
	a := initialized(t, model(), 1)
	s, err := StateDict(a)
	if err != nil {
		t.Fatal(err)
	}
	wrapped := new(State)
	for name, x := range s.All() {
		wrapped.Set("module."+name, x)
	}
	for _, s := range []*State{s, wrapped} {
		b := initialized(t, model(), 2)
		if err := LoadStateDict(b, s, true); err != nil {
			t.Fatal(err)
		}
		sameState(t, a, b)
	}
}

func TestLoadTied(t *testing.T) {
	m := newAutoencoder()
	s, err := StateDict(initialized(t, newAutoencoder(), 1))
	if err != nil {
		t.Fatal(err)
	}
	// PyTorch writes tied weights under every name.
	s.Set("out.weight", s.Get("encode.weight"))
	if err := LoadStateDict(m, s, true); err != nil {
		t.Error(err)
	}
	// Others write them once, under any.
	s.names = slices.DeleteFunc(s.names, func(n string) bool { return n == "encode.weight" })
	delete(s.tensors, "encode.weight")
	m = newAutoencoder()
	if err := LoadStateDict(m, s, true); err != nil {
		t.Error(err)
	}
	if m.Encode.Weight.Data() == nil {
		t.Error("the tied weight was not loaded by its second name")
	}
}

func TestSafetensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	a := initialized(t, smallNet(), 1)
	if err := SaveSafetensors(a, path); err != nil {
		t.Fatal(err)
	}
	b := smallNet()
	if err := LoadSafetensors(b, path, true); err != nil {
		t.Fatal(err)
	}
	sameState(t, a, b)

	// Saving again replaces the file; nothing else stays in the directory.
	c := initialized(t, smallNet(), 2)
	if err := SaveSafetensors(c, path); err != nil {
		t.Fatal(err)
	}
	if err := LoadSafetensors(b, path, true); err != nil {
		t.Fatal(err)
	}
	sameState(t, c, b)
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("the directory holds %v, %v", files, err)
	}

	if err := SaveSafetensors(a, filepath.Join(t.TempDir(), "no", "such", "dir")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	if err := LoadSafetensors(b, filepath.Join(t.TempDir(), "none"), true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	if err := LoadSafetensors(Linear(1, 1), path, true); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name the file", err)
	}
}

// The tensors of a large state are not in memory a second time while it is saved.
func TestSaveSharesMemory(t *testing.T) {
	const count, elements = 8, 1 << 16
	s := new(State)
	for i := range count {
		s.Set(strconv.Itoa(i), tensor.New(tensor.WithShape(elements), tensor.Of(tensor.Float32)))
	}
	path := filepath.Join(t.TempDir(), "state")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := s.Save(path); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > count/2*4*elements {
		t.Errorf("%d bytes were taken to save %d", n, count*4*elements)
	}
}

// What could be written but not be read is not written. Metadata of other programs mean nothing here.
func TestWordsOfSafetensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for _, c := range []struct{ name, key, value, want string }{
		{"x", "crc32c", "00000000", ""},
		{"ä \"<\n\u2028", "\x00", "é", ""},
		{"__metadata__", "", "", "__metadata__"},
		{"x\xff", "", "", `x\xff`},
		{"x", "a\xff", "", `a\xff`},
		{"x", "a", "b\xff", `b\xff`},
	} {
		s := State{Metadata: map[string]string{c.key: c.value}}
		s.Set(c.name, tensor.New(tensor.WithShape(1), tensor.WithBacking([]float32{1})))
		if err := s.Save(path); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %q: %q: %v, want %q", c.name, c.key, c.value, err, c.want)
		} else if err != nil {
			continue
		}
		if back, err := ReadSafetensors(path); err != nil || !slices.Equal(back.Names(), s.Names()) || !maps.Equal(back.Metadata, s.Metadata) {
			t.Errorf("%q, %q: %q: read %v, %v", c.name, c.key, c.value, back, err)
		}
	}
}

// Metadata comes back, and no bit of it or of a tensor changes unseen.
func TestDamagedSafetensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := State{Metadata: map[string]string{"steps": "1234"}}
	s.Set("x", tensor.New(tensor.WithShape(2), tensor.WithBacking([]float32{1, 2})))
	if err := s.Save(path); err != nil {
		t.Fatal(err)
	}
	if back, err := ReadSafetensors(path); err != nil || !maps.Equal(back.Metadata, s.Metadata) {
		t.Errorf("read %v, %v", back, err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"1234", "\"x\"", "\x00\x00\x80\x3f"} {
		damaged := bytes.Clone(whole)
		damaged[bytes.Index(whole, []byte(part))+1] ^= 1
		if _, err := parseSafetensors(damaged); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("with a bit of %q changed: %v", part, err)
		}
	}
}

func TestDecode(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		t    safetensors.DType
		b    []byte
		want float32
	}{
		{safetensors.F16, []byte{0x00, 0x3c}, 1},
		{safetensors.F16, []byte{0x01, 0x00}, 0x1p-24}, // the smallest subnormal
		{safetensors.F16, []byte{0xff, 0x03}, 1023 * 0x1p-24},
		{safetensors.F16, []byte{0xff, 0xfb}, -65504},
		{safetensors.F16, []byte{0x00, 0x7c}, inf},
		{safetensors.F16, []byte{0x00, 0xfc}, -inf},
		{safetensors.F16, []byte{0x00, 0x80}, 0},
		{safetensors.BF16, []byte{0x80, 0xbf}, -1},
		{safetensors.F64, []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, 1.5},
		{safetensors.I64, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, -2},
		{safetensors.I32, []byte{0xfe, 0xff, 0xff, 0xff}, -2},
		{safetensors.U8, []byte{200}, 200},
	} {
		x, ok := decode(c.t, c.b)
		if !ok || len(x) != 1 || x[0] != c.want {
			t.Errorf("%v of %x is %v, want %v", c.t, c.b, x, c.want)
		}
	}
	if x, _ := decode(safetensors.F16, []byte{0x01, 0x7c}); !math.IsNaN(float64(x[0])) {
		t.Errorf("a half NaN is %v", x)
	}
	if _, ok := decode(safetensors.BOOL, []byte{1}); ok {
		t.Error("truth values were converted")
	}
}

// FuzzSafetensors: whatever a file holds, reading it gives a state that can be written and read again, or an error.
func FuzzSafetensors(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed")
	if err := SaveSafetensors(initialized(f, smallNet(), 1), path); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(whole[:20])
	f.Add(bytes.Replace(whole, []byte("F32"), []byte("F16"), 1))
	f.Add([]byte("\x3b\x00\x00\x00\x00\x00\x00\x00" + `{"a":{"dtype":"F32","shape":[0,4294967296],"data_offsets":[0,0]}}`))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{'})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSafetensors(b)
		if err != nil {
			return
		}
		for name, v := range s.All() {
			x, ok := floats(v)
			if !ok || len(x) != sizeOf(v.Shape()) {
				t.Errorf("%s has shape %v and %d elements", name, v.Shape(), len(x))
			}
		}
	})
}
