package cache

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func open(t *testing.T) *Store {
	t.Helper()
	t.Setenv(Variable, t.TempDir())
	s := Open("algorithms/lib", "it takes longer")
	s.warn = func(err error) { t.Error(err) }
	return s
}

func always([]byte) bool { return true }

func TestPutThenGet(t *testing.T) {
	s := open(t)
	if _, ok := s.Get("key"); ok {
		t.Fatal("there is a choice before one was made")
	}
	if kept, ok := s.Put("key", []byte{1, 2}, always); !ok || !bytes.Equal(kept, []byte{1, 2}) {
		t.Fatalf("Put gave %v, %v", kept, ok)
	}
	again := Open("algorithms/lib", "it takes longer")
	if got, ok := again.Get("key"); !ok || !bytes.Equal(got, []byte{1, 2}) {
		t.Errorf("Get gave %v, %v", got, ok)
	}
	if _, ok := again.Get("another"); ok {
		t.Error("another key has a choice")
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "new-*")); left != nil {
		t.Errorf("%v is left", left)
	}
}

// TestFirstStays: whoever comes later gets the first choice, unless that one is of no use.
func TestFirstStays(t *testing.T) {
	s := open(t)
	for i, want := range []byte{1, 1, 3} {
		usable := always
		if i == 2 {
			usable = func(b []byte) bool { return b[0] != 1 }
		}
		kept, ok := s.Put("key", []byte{byte(i + 1)}, usable)
		if !ok || kept[0] != want {
			t.Errorf("choice %d: kept %v, %v, want %d", i+1, kept, ok, want)
		}
	}
}

func TestAllAgree(t *testing.T) {
	s := open(t)
	var kept [8]byte
	var wg sync.WaitGroup
	for i := range kept {
		wg.Go(func() {
			if b, ok := s.Put("key", []byte{byte(i)}, always); ok {
				kept[i] = b[0]
			}
		})
	}
	wg.Wait()
	for i := range kept {
		if kept[i] != kept[0] {
			t.Fatalf("choices differ: %v", kept)
		}
	}
}

func TestDamage(t *testing.T) {
	whole := encode("key", []byte{7, 8, 9})
	damages := map[string][]byte{
		"empty":      {},
		"short":      whole[:len(whole)-3],
		"long":       append(bytes.Clone(whole), 'x'),
		"another":    encode("another", []byte{7, 8, 9}),
		"other text": []byte("a\nb\nc\nd\n"),
	}
	for i := range whole {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1
		damages[fmt.Sprintf("bit of byte %d", i)] = flipped
	}
	s := open(t)
	if !s.Ready() {
		t.Fatal("not ready")
	}
	for name, file := range damages {
		if err := os.WriteFile(s.path("key"), file, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, ok := s.Get("key"); ok {
			t.Errorf("%s: Get gave %v", name, got)
		}
		if kept, ok := s.Put("key", []byte{2}, always); !ok || kept[0] != 2 {
			t.Errorf("%s: Put gave %v, %v", name, kept, ok)
		}
		if got, ok := s.Get("key"); !ok || got[0] != 2 {
			t.Errorf("%s: then Get gave %v, %v", name, got, ok)
		}
	}
}

// nothing sees that a store remembers nothing, and returns what it warned of.
func nothing(t *testing.T) (warnings []error) {
	t.Helper()
	s := Open("algorithms/lib", "it takes longer")
	s.warn = func(err error) { warnings = append(warnings, err) }
	if s.Ready() {
		t.Error("it is ready")
	}
	if kept, ok := s.Put("key", []byte{1}, always); ok {
		t.Errorf("it kept %v", kept)
	}
	if found, ok := s.Get("key"); ok {
		t.Errorf("it has %v", found)
	}
	return warnings
}

func TestOff(t *testing.T) {
	t.Setenv(Variable, "off")
	if warnings := nothing(t); warnings != nil {
		t.Errorf("it warned of %v", warnings)
	}
}

func TestNowhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv(Variable, file)
	if warnings := nothing(t); len(warnings) != 2 {
		t.Errorf("it warned of %v", warnings)
	}
}

func TestFolder(t *testing.T) {
	base := t.TempDir()
	t.Setenv("HOME", base)
	t.Setenv("XDG_CACHE_HOME", base)
	base, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{"": filepath.Join(base, "tandem"), base: base} {
		t.Setenv(Variable, set)
		if s := Open("algorithms/lib", "it takes longer"); s.dir != filepath.Join(want, "algorithms", "lib") {
			t.Errorf("%s=%q: %s", Variable, set, s.dir)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode("key", []byte{1, 2, 3}))
	f.Add(encode("a\nkey", nil))
	f.Add([]byte(magic + "\n\n\n\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		key, value, err := decode(file)
		if err == nil && !bytes.Equal(encode(key, value), file) {
			// Quotes may be of another kind; the content may not differ.
			if again, v, err := decode(encode(key, value)); err != nil || again != key || !bytes.Equal(v, value) {
				t.Errorf("%q does not come back", file)
			}
		}
	})
}
