package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// Nothing of the layout lies on anything else, or outside.
func TestSegmentLayout(t *testing.T) {
	for _, world := range []int{2, 3, 7, maxWorld} {
		s := &segment{world: world, teams: teamsAt(world)}
		s.mem = make([]byte, s.size())
		type part struct {
			name   string
			lo, hi uintptr
		}
		var parts []part
		add := func(name string, p unsafe.Pointer, n int) {
			lo := uintptr(p) - uintptr(unsafe.Pointer(&s.mem[0]))
			parts = append(parts, part{name, lo, lo + uintptr(n)})
		}
		add("header", unsafe.Pointer(&s.mem[0]), nonceAt+nonceLen)
		add("broken", unsafe.Pointer(s.broken()), 4)
		for r := range world {
			add(fmt.Sprintf("bell %d", r), unsafe.Pointer(s.bell(r)), 4)
			add(fmt.Sprintf("asleep %d", r), unsafe.Pointer(s.asleep(r)), 4)
			add(fmt.Sprintf("gone %d", r), unsafe.Pointer(s.gone(r)), 4)
			add(fmt.Sprintf("record %d", r), unsafe.Pointer(&s.record(r)[0]), len(s.record(r)))
			for area := range 2 {
				in, out := s.stage(r, area)
				add(fmt.Sprintf("in %d of %d", area, r), unsafe.Pointer(&in[0]), 4*len(in))
				add(fmt.Sprintf("out %d of %d", area, r), unsafe.Pointer(&out[0]), 4*len(out))
			}
		}
		for k := 2; k <= world; k++ {
			add(fmt.Sprintf("fate %d", k), unsafe.Pointer(s.fate(k)), 8)
			add(fmt.Sprintf("waiting %d", k), unsafe.Pointer(s.waiting(k)), 4)
			for r := range k {
				add(fmt.Sprintf("phase %d of %d", r, k), unsafe.Pointer(s.phase(k, r)), 8)
				add(fmt.Sprintf("done %d of %d", r, k), unsafe.Pointer(s.done(k, r)), 8)
				for i := range 2 {
					d := s.descriptor(k, r, i)
					add(fmt.Sprintf("descriptor %d of %d of %d", i, r, k), unsafe.Pointer(&d[0]), 8*len(d))
				}
			}
		}
		slices.SortFunc(parts, func(a, b part) int { return int(a.lo) - int(b.lo) })
		for i, p := range parts[1:] {
			if before := parts[i]; before.hi > p.lo {
				t.Fatalf("world %d: %s ends at %d, %s begins at %d", world, before.name, before.hi, p.name, p.lo)
			}
			if p.lo%4 != 0 || p.hi > uintptr(len(s.mem)) {
				t.Fatalf("world %d: %s lies at %d to %d of %d", world, p.name, p.lo, p.hi, len(s.mem))
			}
		}
	}
}

func TestSegmentErrors(t *testing.T) {
	for _, world := range []int{1, maxWorld + 1} {
		if _, _, err := newSegment(world); err == nil {
			t.Errorf("memory for %d ranks gave no error", world)
		}
	}
	seg, file, err := newSegment(2)
	if err != nil {
		t.Fatal(err)
	}
	defer seg.unmap()
	defer file.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	for name, open := range map[string]func() (*segment, error){
		"nonce": func() (*segment, error) { return openSegment(path, 2, make([]byte, nonceLen)) },
		"size":  func() (*segment, error) { return openSegment(path, 3, seg.nonce()) },
		"world": func() (*segment, error) { return openSegment(path, maxWorld+1, seg.nonce()) },
		"none":  func() (*segment, error) { return openSegment("/proc/self/fd/999999", 2, seg.nonce()) },
	} {
		if _, err := open(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, _, err := createMemory(-1); err == nil || !strings.Contains(err.Error(), "free memory") {
		t.Errorf("memory that can't be had: %v; want an error that says what to do", err)
	}
	other, err := openSegment(path, 2, seg.nonce())
	if err != nil {
		t.Fatal(err)
	}
	other.unmap()
}

func TestRecords(t *testing.T) {
	for name, tt := range map[string]struct {
		cause, want error // want nil: the same
		all         bool
	}{
		"timeout":  {cause: &TimeoutError{Op: OpReduce, Limit: time.Second, Missing: []int{2, 3}}, all: true},
		"mismatch": {cause: &MismatchError{Calls: []Call{{Rank: 1, Group: 4, Op: OpGather, Len: 6, Root: 1, Counts: []int{1, 2, 3, 0}}}}, all: true},
		"argument": {cause: &ArgumentError{Rank: 2, Op: OpScatter, Why: "no"}},
		"facts":    {cause: &DisagreementError{Rank: 1, Zero: Fact{"a", "b"}}, all: true},
		"remote":   {cause: &RemoteError{Rank: 9, Text: "far"}},
		"text":     {cause: errors.New("no room"), want: &RemoteError{Rank: 3, Text: "no room"}},
		"closed":   {cause: ErrClosed, want: &RemoteError{Rank: 3, Text: ErrClosed.Error(), Kinds: []string{"closed"}}},
		"wrapped": {cause: fmt.Errorf("late: %w", context.DeadlineExceeded),
			want: &RemoteError{Rank: 3, Text: "late: context deadline exceeded", Kinds: []string{"deadline"}}},
		"long": {cause: fmt.Errorf("%s%w", strings.Repeat("\x01é", 40000), ErrClosed),
			want: &RemoteError{Rank: 3, Text: strings.Repeat("\x01é", 40000)[:recordSize/8], Kinds: []string{"closed"}}},
	} {
		t.Run(name, func(t *testing.T) {
			at := make([]byte, recordSize)
			newRecord(3, 1, tt.cause, tt.all).encode(at)
			rec, err := decodeRecord(at)
			if err != nil {
				t.Fatal(err)
			}
			cause, verdict := rec.errors()
			want := tt.want
			if want == nil {
				want = tt.cause
			}
			if d := cmp.Diff(&BrokenError{Rank: 1, Cause: want}, cause); d != "" {
				t.Error(d)
			}
			if got, all := verdict == cause.Cause, tt.all; got != all { //nolint:errorlint // which of the two it is
				t.Errorf("ranks that waited get %v", verdict)
			}
		})
	}
}

func TestRemoteErrorIs(t *testing.T) {
	e := newRemoteError(1, fmt.Errorf("%w and %w", context.Canceled, ErrClosed))
	for _, target := range []error{context.Canceled, ErrClosed} {
		if !errors.Is(e, target) {
			t.Errorf("%v is not %v any more", e, target)
		}
	}
	for _, target := range []error{context.DeadlineExceeded, os.ErrNotExist} {
		if errors.Is(e, target) {
			t.Errorf("%v is %v", e, target)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	good := make([]byte, 256)
	newRecord(0, 0, ErrClosed, false).encode(good)
	for _, seed := range [][]byte{good, {}, {1}, {255, 255, 255, 255}, {4, 0, 0, 0, '{', '{', '{', '{'}, {2, 0, 0, 0, '{', '}'}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		rec, err := decodeRecord(text)
		if err != nil {
			return
		}
		if cause, verdict := rec.errors(); cause.Cause == nil || verdict == nil || cause.Error() == "" {
			t.Errorf("%q: a record without a cause", text)
		}
	})
}
