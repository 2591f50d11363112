package cudaops

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

func TestParseSimCards(t *testing.T) {
	for value, want := range map[string][]int64{
		"4":             {16 * gib, 16 * gib, 16 * gib, 16 * gib},
		"4x2GiB":        {2 * gib, 2 * gib, 2 * gib, 2 * gib},
		"2GiB,1GiB":     {2 * gib, gib},
		"2GiB":          {2 * gib},
		"2x1GB, 3.5MiB": {1e9, 1e9, 7 << 19},
		" 1 X 1mib ":    {mib},
	} {
		if got, err := parseSimCards(value); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q = %v, %v; want %v", value, got, err, want)
		}
	}
	for _, value := range []string{
		" ", "0", "-1", "1025", "many", "4x", "x2GiB", "4x2", "4 x 2 x 2GiB", "2GiB,", ",2GiB", "0x2GiB", "-1x2GiB",
		"1000x1GiB,25x1GiB", "9223372036854775807x1GiB", "1GiB,9223372036854775807x1GiB", "1KiB", "2000GiB", "4*2GiB", "2GiB;1GiB", "2GiB,4",
	} {
		_, err := parseSimCards(value)
		var e *VariableError
		if !errors.As(err, &e) {
			t.Errorf("%q: error %v, want a VariableError", value, err)
			continue
		}
		for _, part := range []string{"TANDEM_SIM_CARDS", value, "4x2GiB"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: error %q does not have %q", value, err, part)
			}
		}
	}
}

func FuzzParseSimCards(f *testing.F) {
	for _, value := range []string{"4", "4x2GiB", "2GiB,1GiB", "0", "x", "1e9x1B"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		sizes, err := parseSimCards(value)
		if (err == nil) != (len(sizes) > 0) || len(sizes) > simMaxCards {
			t.Fatalf("%d cards, error %v", len(sizes), err)
		}
		for _, s := range sizes {
			if s < simMinMemory || s > simMaxMemory {
				t.Fatalf("card of %d bytes", s)
			}
		}
	})
}

func TestSimUUIDs(t *testing.T) {
	form := regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for i := range simMaxCards {
		u := simUUID(i)
		if !form.MatchString(u) || seen[u] {
			t.Fatalf("card %d: UUID %s", i, u)
		}
		seen[u] = true
	}
	if got, want := simUUID(0), "GPU-485643e4-2527-5137-d37c-06177b5c1a5b"; got != want {
		t.Errorf("the UUID of card 0 has changed: %s, want %s", got, want)
	}
}

func newSim(t *testing.T, spec string) *simDriver {
	t.Helper()
	d, _, err := newSimDriver(spec, setting{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSimCapacityIsExact(t *testing.T) {
	d := newSim(t, "2x1MiB")
	r, err := d.malloc(1, mib)
	if err != nil {
		t.Fatal(err)
	}
	if p := uintptr(unsafe.Pointer(unsafe.SliceData(r.host()))); p%64 != 0 {
		t.Errorf("address %#x is not a multiple of 64", p)
	}
	if _, err := d.malloc(1, blockUnit); !errors.Is(err, errCardFull) {
		t.Errorf("full card: error %v, want %v", err, errCardFull)
	}
	if free, total, _ := d.memInfo(1); free != 0 || total != mib {
		t.Errorf("full card: %d of %d free", free, total)
	}
	if free, _, _ := d.memInfo(0); free != mib {
		t.Errorf("the other card: %d free, want all", free)
	}
	if err := r.release(); err != nil {
		t.Error(err)
	}
	if err := r.release(); err == nil {
		t.Error("second release: no error")
	}
	if free, _, _ := d.memInfo(1); free != mib {
		t.Errorf("after release: %d free, want all", free)
	}
}

func TestSimRecycledMemoryIsNaN(t *testing.T) {
	d := newSim(t, "1MiB")
	r, err := d.malloc(0, 4*blockUnit)
	if err != nil {
		t.Fatal(err)
	}
	r.recycle(blockUnit, blockUnit)
	for i, b := range r.host() {
		if recycled := i/blockUnit == 1; recycled != (b == 0xFF) {
			t.Fatalf("byte %d is %#x", i, b)
		}
	}
	if x := *(*float32)(unsafe.Pointer(&r.host()[blockUnit])); !math.IsNaN(float64(x)) {
		t.Errorf("float32 is %v, want NaN", x)
	}
}
