package cudaops

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Binary units of memory, in bytes.
const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// maxSize is the largest size that is understood: far above any card's memory,
// and far enough below the largest int64 that sums do not overflow.
const maxSize = int64(1) << 60

// units are the units of a size, longest names first: B ends them all.
var units = []struct {
	name  string
	bytes float64
}{
	{"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
	{"B", 1},
}

// ParseSize reads a size such as 8GiB, as CUDA_DEVICE_LIMIT has it: see the
// package's doc for the units. It gives bytes.
func ParseSize(s string) (int64, error) {
	n, err := parseSize(s)
	if err != nil {
		return 0, fmt.Errorf("cudaops: size: %w", err)
	}
	return n, nil
}

// FormatSize writes bytes for people: 512 B, 1.50 MiB, 13.98 GiB.
func FormatSize(bytes int64) string { return formatSize(bytes) }

// parseSize reads a size such as 8GiB, 1.5 GB or 512B, rounded to whole bytes.
func parseSize(s string) (int64, error) {
	upper := strings.ToUpper(strings.TrimSpace(s))
	for _, u := range units {
		number, found := strings.CutSuffix(upper, u.name)
		if !found {
			continue
		}
		n, err := parseDecimal(strings.TrimSpace(number))
		if err != nil {
			return 0, err
		}
		bytes := math.Round(n * u.bytes)
		if bytes > float64(maxSize) {
			return 0, fmt.Errorf("%q is more than any card has", s)
		}
		return int64(bytes), nil
	}
	return 0, fmt.Errorf("%q has no unit: B, KiB, MiB, GiB, KB, MB or GB", s)
}

// parseDecimal reads digits with at most one point among them: no sign, exponent,
// infinity or NaN.
func parseDecimal(s string) (float64, error) {
	if strings.Trim(s, "0123456789.") != "" || strings.Trim(s, ".") == "" {
		return 0, fmt.Errorf("%q is not a decimal number", s)
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a decimal number", s)
	}
	return n, nil
}

// formatSize writes bytes for people: 512 B, 1.50 MiB, 13.98 GiB.
func formatSize(bytes int64) string {
	abs := max(bytes, -bytes)
	switch {
	case abs < kib:
		return fmt.Sprintf("%d B", bytes)
	case abs < mib:
		return fmt.Sprintf("%.2f KiB", float64(bytes)/float64(kib))
	case abs < gib:
		return fmt.Sprintf("%.2f MiB", float64(bytes)/float64(mib))
	}
	return fmt.Sprintf("%.2f GiB", float64(bytes)/float64(gib))
}

// roundUp and roundDown give the multiple of unit next to n.
func roundUp(n, unit int64) int64   { return (n + unit - 1) / unit * unit }
func roundDown(n, unit int64) int64 { return n / unit * unit }
