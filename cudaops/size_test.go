package cudaops

import "testing"

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"0B": 0, "512B": 512, "1KiB": 1024, "1MiB": 1 << 20, "8GiB": 8 << 30,
		"1KB": 1000, "1MB": 1e6, "2GB": 2e9, "1.5GiB": 3 << 29, ".5KiB": 512, "1.KiB": 1024,
		"0.57GB": 570e6, " 8 gib ": 8 << 30, "8gB": 8e9, "0.4B": 0,
	} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "8", "B", "GiB", ".GiB", "-1GiB", "+1GiB", "1e3B", "0x1B", "NaNB", "InfGiB", "1.2.3B", "1_0B", "8TiB", "8Gi", "1 2B", "99999999999GiB"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q = %d, want an error", s, got)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1536: "1.50 KiB", 20 << 20: "20.00 MiB", 15010900377: "13.98 GiB", -1536: "-1.50 KiB",
	} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
