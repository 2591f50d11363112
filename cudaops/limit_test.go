package cudaops

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestCapsCombineToTheSmallest(t *testing.T) {
	fraction := func(f float64) *float64 { return &f }
	bytes := func(n int64) *int64 { return &n }
	variable := func(s string) *amount {
		a, err := parseAmount(s)
		if err != nil {
			t.Fatal(err)
		}
		return &a
	}
	for _, tt := range []struct {
		caps   caps
		want   int64
		source LimitSource
		text   string
	}{
		{caps{}, 8 * gib, LimitByCard, "8.00 GiB by the card's memory"},
		{caps{fraction: fraction(0.25)}, 2 * gib, LimitByFraction, "2.00 GiB by SetPerProcessMemoryFraction (0.25)"},
		{caps{fraction: fraction(0)}, 0, LimitByFraction, "0 B by SetPerProcessMemoryFraction (0)"},
		{caps{fraction: fraction(1)}, 8 * gib, LimitByCard, "8.00 GiB by the card's memory"},
		{caps{bytes: bytes(gib)}, gib, LimitByBytes, "1.00 GiB by SetDeviceMemoryLimit (1073741824 bytes)"},
		{caps{bytes: bytes(9 * gib)}, 8 * gib, LimitByCard, "8.00 GiB by the card's memory"},
		{caps{variable: variable("50%")}, 4 * gib, LimitByVariable, "4.00 GiB by CUDA_DEVICE_LIMIT (50%)"},
		{caps{variable: variable("4GiB from --memory-fraction 0.5")}, 4 * gib, LimitByVariable, "4.00 GiB by CUDA_DEVICE_LIMIT (4GiB from --memory-fraction 0.5)"},
		{caps{fraction(0.5), bytes(2 * gib), variable("3GiB")}, 2 * gib, LimitByBytes, ""},
		{caps{fraction(0.1), bytes(2 * gib), variable("3GiB")}, 858993459, LimitByFraction, ""},
		{caps{fraction(0.5), bytes(2 * gib), variable("1GiB")}, gib, LimitByVariable, ""},
		{caps{fraction(0.25), bytes(2 * gib), variable("25%")}, 2 * gib, LimitByFraction, ""},
	} {
		l := tt.caps.limit(8 * gib)
		if l.Bytes != tt.want || l.Source != tt.source || tt.text != "" && l.String() != tt.text {
			t.Errorf("%+v: %d bytes by %v, %q; want %d by %v, %q", tt.caps, l.Bytes, l.Source, l, tt.want, tt.source, tt.text)
		}
	}
	// Of the last one, all are told, equal ones in a fixed order.
	all := caps{fraction(0.25), bytes(2 * gib), variable("25%")}.all(8 * gib)
	want := []Limit{{2 * gib, LimitByFraction, "0.25"}, {2 * gib, LimitByBytes, "2147483648 bytes"}, {2 * gib, LimitByVariable, "25%"}, {8 * gib, LimitByCard, ""}}
	if !slices.Equal(all, want) {
		t.Errorf("all: %v, want %v", all, want)
	}
	if got := LimitSource(9).String(); got != "LimitSource(9)" {
		t.Errorf("unknown source: %q", got)
	}
}

// TestFractionOfH200 is the cap that PyTorch was seen to set on that card.
func TestFractionOfH200(t *testing.T) {
	total := 1398 * gib / 10
	if got := formatSize(fractionOf(0.1, total)); got != "13.98 GiB" {
		t.Errorf("0.1 of %s is %s, want 13.98 GiB", formatSize(total), got)
	}
}

func TestParseDeviceLimit(t *testing.T) {
	const total, none = 10 * gib, int64(-1)
	for _, tt := range []struct {
		value string
		want  []int64 // of each card, none for no cap
	}{
		{"8GiB", []int64{8 * gib, 8 * gib}},
		{"50%", []int64{5 * gib, 5 * gib}},
		{" 12.5 % ", []int64{gib + gib/4, gib + gib/4}},
		{"0%", []int64{0, 0}},
		{"100%", []int64{total, total}},
		{"0:8GiB,1:50%", []int64{8 * gib, 5 * gib}},
		{"1:50%", []int64{none, 5 * gib}},
		{" 1 : 1 GB , 0 : 512B ", []int64{512, 1e9}},
		{"0:8GiB from here,1:50% from there", []int64{8 * gib, 5 * gib}},
		{"0:8GiB,1:50%", []int64{}}, // a process without cards
	} {
		got, err := parseDeviceLimit(tt.value, len(tt.want))
		if err != nil || len(got) != len(tt.want) {
			t.Errorf("%q: %v, %v", tt.value, got, err)
			continue
		}
		for i, a := range got {
			bytes := none
			if a != nil {
				bytes = a.of(total)
			}
			if bytes != tt.want[i] {
				t.Errorf("%q: card %d gets %d, want %d", tt.value, i, bytes, tt.want[i])
			}
		}
	}
	for _, value := range []string{
		" ", "8", "lots", "-1GiB", "101%", "%", "NaN%", "Inf%", "1e1%", "8GiB,4GiB", "0:8GiB,50%", "0:", ":8GiB", "0:8", "0:8GiB,",
		"0:8GiB,0:4GiB", "2:8GiB", "-1:8GiB", "+1:8GiB", "4294967296:1GiB", "0:1:8GiB", "0=8GiB", "GPU-1:8GiB",
		"from 8GiB", "8 from here", "8GiB here",
	} {
		_, err := parseDeviceLimit(value, 2)
		var e *VariableError
		if !errors.As(err, &e) {
			t.Errorf("%q: error %v, want a VariableError", value, err)
			continue
		}
		for _, part := range []string{"CUDA_DEVICE_LIMIT", value, "0:8GiB,1:50%"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: error %q does not have %q", value, err, part)
			}
		}
	}
	if _, err := parseDeviceLimit("7:1GiB,7:1GiB", 0); err == nil {
		t.Error("a card twice, in a process without cards: no error")
	}
}

func FuzzParseDeviceLimit(f *testing.F) {
	for _, value := range []string{"8GiB", "50%", "0:8GiB,1:50%", "0:8GiB,0:1B", "1.5e3%", "9999999999GiB", ":%,"} {
		f.Add(value, 2)
	}
	f.Fuzz(func(t *testing.T, value string, cards int) {
		if cards < 0 || cards > 16 {
			return
		}
		amounts, err := parseDeviceLimit(value, cards)
		if err != nil {
			return
		}
		if len(amounts) != cards {
			t.Fatalf("%d amounts for %d cards", len(amounts), cards)
		}
		for i, a := range amounts {
			if a == nil {
				continue
			}
			for _, total := range []int64{0, 1, mib, 1<<53 + 1} {
				n := a.of(total)
				if n < 0 || a.relative && n > total+1 || n > maxSize {
					t.Fatalf("card %d: %d of %d bytes", i, n, total)
				}
				if l := (caps{variable: a}).limit(total); l.Bytes > total {
					t.Fatalf("card %d: limit %d of %d bytes", i, l.Bytes, total)
				}
			}
		}
	})
}

func TestInvalidFraction(t *testing.T) {
	for f, text := range map[float64]string{
		1.5:         "Invalid fraction value: 1.5. Allowed range: 0~1",
		-0.1:        "Invalid fraction value: -0.1. Allowed range: 0~1",
		math.Inf(1): "Invalid fraction value: +Inf. Allowed range: 0~1",
	} {
		err := SetPerProcessMemoryFraction(f)
		var e *InvalidFractionError
		if !errors.As(err, &e) || e.Fraction != f || err.Error() != text {
			t.Errorf("%v: error %v, want %q", f, err, text)
		}
	}
	var e *InvalidFractionError
	if err := SetPerProcessMemoryFraction(math.NaN()); !errors.As(err, &e) || !strings.Contains(err.Error(), "value: NaN.") {
		t.Errorf("NaN: error %v", err)
	}
}
