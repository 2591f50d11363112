package cudaops

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Stat is one quantity of the allocator over time.
type Stat struct {
	Current   int64
	Peak      int64 // highest Current since the start or ResetPeakMemoryStats
	Allocated int64 // sum of all increases
	Freed     int64 // sum of all decreases
}

func (s *Stat) increase(n int64) {
	s.Current += n
	s.Allocated += n
	s.Peak = max(s.Peak, s.Current)
}

func (s *Stat) decrease(n int64) {
	s.Current -= n
	s.Freed += n
}

// PoolStats are the statistics of one pool of the allocator, or of both.
type PoolStats struct {
	Allocations    Stat // blocks in use
	Segments       Stat // pieces of memory from the driver
	AllocatedBytes Stat // bytes of blocks in use: requests rounded up to 512 B
	RequestedBytes Stat // bytes asked for in those
	ReservedBytes  Stat // bytes of segments
}

func (p *PoolStats) each() []*Stat {
	return []*Stat{&p.Allocations, &p.Segments, &p.AllocatedBytes, &p.RequestedBytes, &p.ReservedBytes}
}

// Stats are the statistics of a card's allocator.
type Stats struct {
	All, SmallPool, LargePool PoolStats

	// InactiveSplitBytes are free but part of a segment with blocks in use:
	// EmptyCache cannot give them back.
	InactiveSplitBytes int64

	AllocRetries int64 // requests that did not fit until, or not even when, the cache was given back
	OOMs         int64 // requests that failed for want of memory
}

// scopes are the sets of statistics that a change in a pool counts in.
func (s *Stats) scopes(p pool) [2]*PoolStats {
	if p == smallPool {
		return [...]*PoolStats{&s.All, &s.SmallPool}
	}
	return [...]*PoolStats{&s.All, &s.LargePool}
}

func (s *Stats) resetPeaks() {
	for _, p := range []*PoolStats{&s.All, &s.SmallPool, &s.LargePool} {
		for _, stat := range p.each() {
			stat.Peak = stat.Current
		}
	}
}

// MemoryStats are the statistics of the card's allocator.
func MemoryStats(device int) (Stats, error) {
	c, err := lookup(device)
	if err != nil {
		return Stats{}, err
	}
	return c.mem.statistics(), nil
}

// MemoryAllocated is the bytes of the card's memory in use by [Memory] values:
// each counts with its length rounded up to 512 B.
func MemoryAllocated(device int) (int64, error) {
	s, err := MemoryStats(device)
	return s.All.AllocatedBytes.Current, err
}

// MaxMemoryAllocated is the highest [MemoryAllocated] since the start or the last
// [ResetPeakMemoryStats], in bytes.
func MaxMemoryAllocated(device int) (int64, error) {
	s, err := MemoryStats(device)
	return s.All.AllocatedBytes.Peak, err
}

// MemoryReserved is the bytes that the card's allocator holds, in use or cached.
func MemoryReserved(device int) (int64, error) {
	s, err := MemoryStats(device)
	return s.All.ReservedBytes.Current, err
}

// MaxMemoryReserved is the highest [MemoryReserved] since the start or the last
// [ResetPeakMemoryStats], in bytes.
func MaxMemoryReserved(device int) (int64, error) {
	s, err := MemoryStats(device)
	return s.All.ReservedBytes.Peak, err
}

// ResetPeakMemoryStats sets every peak of the card's statistics to the current
// value.
func ResetPeakMemoryStats(device int) error {
	c, err := lookup(device)
	if err != nil {
		return err
	}
	c.mem.resetPeaks()
	return nil
}

// MemorySummary is, for people, what the card has free, the limits on this process,
// and a table of its allocator's statistics.
func MemorySummary(device int) (string, error) {
	c, err := lookup(device)
	if err != nil {
		return "", err
	}
	s := c.mem.statistics()
	var b strings.Builder
	free, total, err := MemGetInfo(device)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "%s: %s, %s of %s free\n", String(device), c.info.props.Name, formatSize(free), formatSize(total))
	overhead, err := c.mem.overhead()
	if err != nil {
		return "", fmt.Errorf("cudaops: memory summary of %s: %w", String(device), err)
	}
	if overhead > 0 {
		fmt.Fprintf(&b, "context and libraries, which count towards the limit: %s\n", formatSize(overhead))
	}
	for i, l := range c.mem.limits() {
		what := "limit"
		if i > 0 {
			what = "above it"
		}
		fmt.Fprintf(&b, "%s: %s\n", what, l)
	}
	fmt.Fprintf(&b, "%d out of memory, %d retries, %s inactive split\n", s.OOMs, s.AllocRetries, formatSize(s.InactiveSplitBytes))

	count := func(n int64) string { return fmt.Sprint(n) }
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "metric\tcurrent\tpeak\ttotal allocated\ttotal freed\t")
	for _, row := range []struct {
		name string
		of   func(*PoolStats) Stat
		text func(int64) string
	}{
		{"allocated memory", func(p *PoolStats) Stat { return p.AllocatedBytes }, formatSize},
		{"requested memory", func(p *PoolStats) Stat { return p.RequestedBytes }, formatSize},
		{"reserved memory", func(p *PoolStats) Stat { return p.ReservedBytes }, formatSize},
		{"allocations", func(p *PoolStats) Stat { return p.Allocations }, count},
		{"segments", func(p *PoolStats) Stat { return p.Segments }, count},
	} {
		for _, scope := range []struct {
			name string
			p    *PoolStats
		}{{row.name, &s.All}, {"small pool", &s.SmallPool}, {"large pool", &s.LargePool}} {
			v := row.of(scope.p)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", scope.name, row.text(v.Current), row.text(v.Peak), row.text(v.Allocated), row.text(v.Freed))
		}
	}
	if err := w.Flush(); err != nil {
		return "", fmt.Errorf("cudaops: memory summary of %s: %w", String(device), err)
	}
	return b.String(), nil
}
