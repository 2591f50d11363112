package nvrtc

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A line a second says how much of all that is asked for is compiled, whoever asks; what is there within a second needs none.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		r := &report{out: &said, after: time.Second}
		end := r.expect([]string{"a", "b", "c"})
		time.Sleep(time.Second / 2)
		r.done("a")
		also := r.expect([]string{"b", "d"})
		time.Sleep(time.Second)
		r.done("b")
		r.done("d")
		also()
		time.Sleep(time.Second)
		r.done("c")
		end()
		end = r.expect([]string{"e"})
		time.Sleep(time.Second / 2)
		end()
		synctest.Wait()
		if got, want := said.String(), "tandem: compiling kernels: 1 of 4\ntandem: compiling kernels: 3 of 4\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestCompileAll(t *testing.T) {
	store, c := newCache(t, t.TempDir()), &counting{}
	r := &report{after: time.Hour}
	images, err := compileAll(c, store, r, []string{"x", "y", "x"}, "sm_90")
	if err != nil || len(images) != 3 {
		t.Fatalf("%d images, %v", len(images), err)
	}
	if x, y := string(images[0]), string(images[1]); !strings.HasPrefix(x, "x for sm_90, ") || !strings.HasPrefix(y, "y for sm_90, ") || x != string(images[2]) || c.n != 2 {
		t.Errorf("got %q after %d compilations", images, c.n)
	}
}
