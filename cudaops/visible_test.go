package cudaops

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The two cards on which the driver's readings were measured (driver 580.159).
const (
	uuidA = "GPU-9291e03a-c881-f71c-2acf-0c0b2a033b4e"
	uuidB = "GPU-f590a942-e3d4-3c86-707e-c79079077e8c"
)

// fillUUIDs puts the cards' UUIDs in for A and B, and the digits of B for D.
func fillUUIDs(value string) string {
	return strings.NewReplacer("<A>", uuidA, "<B>", uuidB, "<D>", uuidB[4:]).Replace(value)
}

// TestResolveVisibleAsDriver is what the driver was seen to make of each value:
// 100 and 101 are cuInit's errors, no device and (a repeated card) invalid device.
func TestResolveVisibleAsDriver(t *testing.T) {
	readings := []struct {
		want   string
		values []string
	}{
		{"100", []string{
			"", "-1", "2", ",0", "a", "none", "all", "NoDevFiles", "99999999999", // nothing, or no such card
			" ", ",", " ,0", "a,0", "-1,0", "-2", `"1"`, "'1'", "+ 1", "--1", "+-1", "GPU",
			"9223372036854775807", "-9223372036854775806", "-9223372036854775809", "18446744073709551615",
			"18446744073709551616", "18446744073709551617", "99999999999999999999", "-99999999999999999999",
			"-18446744073709551616", "-18446744073709551617",
			"GPU-", "MIG-", "MIG-x", "MIG-<B>", "MIG-<B>/0/0", "GPU-zz,<A>", // no UUID, or not one card's
			"gpu-<D>", "Gpu-<D>", "<D>", " <B>", "\t<B>",
			"GPU-f590a ", "GPU-f590zz", "GPU-f590a942zz", "GPU-0x<D>", "GPU-f59 0a942-e3d4-3c86-707e-c79079077e8c",
			"GPU-f590a942_e3d4_3c86_707e_c79079077e8c", "GPU-f590a942-e3d4-3c86-707e-c79079077e8zz",
			"GPU-f590a942-e3d4-3c86-707e-c79079077e ,<A>",
		}},
		{"101", []string{
			"0,0", "0,1,0", "1,1,", "0,0,5", "0,1gpu,0", "<B>,<B>", "<B>,<A>,<B>", "<B>,<B>,zz",
			"GPU-f590a,<B>", "GPU-f590a,GPU-f590a", "<B>,MIG-<D>,<A>",
		}},
		{"a", []string{
			"0,2,-1,1", "0,5,1", "0,5,0", "0,-1,0", "0,a", "0,a,1", "0,,1", "0,,0", "0,", // the list ends early
			"0;1", "0:1", "0x1", "00", "0-1", "0 1", "-0",
			"0,<B>", "0,<B>,0", "0,<B>,1", "0,MIG-x", // the first entry sets the kind
			"4294967296", "-4294967296", "9223372036854775808", "-9223372036854775808", // wraps
		}},
		{"b", []string{
			"1", "+1", "1.0", "1e5", "1-0", "\t1", "\n1", "\v1", "\f1", "\r1",
			"4294967297", "-4294967295", "-9223372036854775807", "9223372036854775809", "-18446744073709551615",
			"<B>", "<B> ", "<B>\t", "<B>x", "<B>-", "<B>00", "<B>0-zz", "<B>:0", "<B>/0/0", "<B>;<A>", "<B>,",
			"<B>,0", "<B>,1,<A>", "<B>,,<A>", "<B>,GPU-zz", "<B>,GPU-zz,<A>", "<B>,MIG-x,<A>", "<B>, <A>", "<B> , <A>",
			"GPU-f", "GPU-f590", "GPU-f590a942-", "GPU-f590a942-e3", "GPU-f590a942e3", "GPU-f5-90a", "GPU-f5-", "GPU--f590a",
			"GPU-f590a942e3d43c86707ec79079077e8c", "GPU-f590a942--e3d4-3c86-707e-c79079077e8c",
			"GPU-F590A942-E3D4-3C86-707E-C79079077E8C", "GPU-f590a942-e3d4-3c86-707e-c79079077e8",
			"MIG-<D>", "MIG-f590", "MIG-F590A942", "MIG-<D>/0/0",
		}},
		{"ab", []string{"0,1", "0,1,2", "0,1,5,0", "0 ,1", "-0,1", "0x1,1", "<A>,MIG-f590a"}},
		{"ba", []string{
			"1,0", "1 , 0", " 1,0", "1\t,0", "1 0,0", "1gpu2,0ampere", "01,0",
			"<B>,<A>", "<B>,<A> ", "<B> ,<A>", "<B>x,<A>", "<B>;,<A>", "<B>0,<A>", "<B>,<A>,1", "GPU-f590a,<A>", "GPU-f,GPU-9", "MIG-<D>,<A>",
		}},
	}
	for _, r := range readings {
		for _, value := range r.values {
			got := reading(ResolveVisible([]string{uuidA, uuidB}, fillUUIDs(value), true))
			if got != r.want {
				t.Errorf("%q: cards %s, want %s", value, got, r.want)
			}
		}
	}
	if got := reading(ResolveVisible([]string{uuidA, uuidB}, "", false)); got != "ab" {
		t.Errorf("unset: cards %s, want ab", got)
	}
}

// reading writes cards as letters, and none as cuInit's error.
func reading(v Visibility) string {
	switch {
	case v.Repeated:
		return "101"
	case len(v.Cards) == 0:
		return "100"
	}
	var b strings.Builder
	for _, c := range v.Cards {
		b.WriteByte(byte('a' + c))
	}
	return b.String()
}

func TestResolveVisibleMIG(t *testing.T) {
	parts := []string{"MIG-11111111-2222-3333-4444-555555555555", "MIG-1111aaaa-2222-3333-4444-555555555555"}
	v := ResolveVisible(parts, "MIG-1111a,MIG-11111", true)
	if !slices.Equal(v.Cards, []int{1, 0}) {
		t.Errorf("cards %v, want [1 0]", v.Cards)
	}
}

// TestPartHasNoNumber: what the driver shows of a card with MIG is not the card with that number.
func TestPartHasNoNumber(t *testing.T) {
	seen := []*realCard{{info: cardInfo{props: Properties{UUID: "MIG-11111111-2222-3333-4444-555555555555"}}}}
	v := visibilityOf(seen, machineUUIDs(setting{}, seen), setting{})
	if !slices.Equal(v.Cards, []int{UnknownPhysical}) {
		t.Errorf("physical numbers %v, want an unknown one", v.Cards)
	}
}

func TestResolveVisibleExplains(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  []string // "entry: text: part of the reason"
	}{
		{"1,0", nil},
		{" 1 , 0 ", nil}, // blanks are no news
		{"", []string{"1: : it is empty"}},
		{"0,2,-1,1", []string{"2: 2: there is no card 2 (there are 0 to 1)", "3: -1: ended at entry 2", "4: 1: ended at entry 2"}},
		{"-1", []string{"1: -1: there is no card -1"}},
		{"all", []string{"1: all: not a card's number"}},
		{"0;1", []string{"1: ;1: chose card 0 before this"}},
		{"1.0,0", []string{"1: .0: chose card 1 before this"}},
		{"0,<B>", []string{"2: <B>: a UUID in a list that began with a number"}},
		{"<B>,0", []string{"2: 0: in a list that began with a UUID"}},
		{"<B>;<A>", []string{"1: ;<A>: chose card 1 before this"}},
		{"GPU-", []string{"1: GPU-: 2 cards have UUIDs that begin so"}},
		{"GPU-0", []string{"1: GPU-0: no card has this UUID"}},
		{"GPU-9z", []string{`1: GPU-9z: "z" is no hexadecimal digit`}},
		{"1,0,1,0", []string{"1: 1: a repeated card (entry 3)", "2: 0: a repeated card (entry 3)", "3: 1: chooses card 1 again, as entry 1 did", "4: 0: a repeated card (entry 3)"}},
	} {
		got := ResolveVisible([]string{uuidA, uuidB}, fillUUIDs(tt.value), true).Ignored
		if len(got) != len(tt.want) {
			t.Errorf("%q: ignored %+v, want %q", tt.value, got, tt.want)
			continue
		}
		for i, e := range got {
			parts := strings.SplitN(fillUUIDs(tt.want[i]), ": ", 3)
			if fmt.Sprint(e.Entry) != parts[0] || e.Text != parts[1] || !strings.Contains(e.Reason, parts[2]) {
				t.Errorf("%q: ignored %+v, want %q", tt.value, e, tt.want[i])
			}
		}
	}
}

func FuzzResolveVisible(f *testing.F) {
	for _, value := range []string{"", "1,0", "0,0", "0,2,-1,1", "<B>,<A>", "GPU-f,1", "4294967296", "0x1,1", "-99999999999999999999"} {
		f.Add(fillUUIDs(value), 2)
	}
	f.Fuzz(func(t *testing.T, value string, n int) {
		if n < 0 || n > 16 {
			return
		}
		uuids := make([]string, n)
		for i := range uuids {
			uuids[i] = simUUID(i)
		}
		v := ResolveVisible(uuids, value, true)

		entries := strings.Split(value, ",")
		seen := map[int]bool{}
		for _, c := range v.Cards {
			if c < 0 || c >= n || seen[c] {
				t.Fatalf("cards %v of %d", v.Cards, n)
			}
			seen[c] = true
		}
		if v.Repeated && (len(v.Cards) > 0 || len(v.Ignored) != len(entries)) {
			t.Fatalf("repeated, and yet %+v", v)
		}
		// Every entry is a card or, from the one that ended the list on, ignored.
		if len(v.Cards) > len(entries) {
			t.Fatalf("%d cards of %d entries", len(v.Cards), len(entries))
		}
		for _, e := range v.Ignored {
			if !strings.HasSuffix(entries[e.Entry-1], e.Text) || e.Reason == "" {
				t.Fatalf("ignored %+v of %q", e, entries)
			}
		}
		if !v.Repeated {
			for i := len(v.Cards); i < len(entries); i++ {
				want := IgnoredEntry{Entry: i + 1, Text: entries[i]}
				if !slices.ContainsFunc(v.Ignored, func(e IgnoredEntry) bool { return e.Entry == want.Entry && e.Text == want.Text }) {
					t.Fatalf("entry %d of %q is neither card nor ignored: %+v", i+1, value, v)
				}
			}
		}
		// What has no effect can be left out.
		if m := len(v.Cards); m > 0 {
			if again := ResolveVisible(uuids, strings.Join(entries[:m], ","), true); !slices.Equal(again.Cards, v.Cards) {
				t.Fatalf("%q: %v, without the rest %v", value, v.Cards, again.Cards)
			}
		}
	})
}
