package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/launcher"
)

// procs is the value of --nproc-per-node.
type procs struct {
	kind  string // "" (by default), "auto", "gpu", "cpu", or "number"
	count int
}

func (v *procs) Type() string { return "number" }

func (v *procs) String() string {
	if v.kind == "number" {
		return strconv.Itoa(v.count)
	}
	return v.kind
}

func (v *procs) Set(s string) error {
	switch s {
	case "auto", "gpu", "cpu":
		*v = procs{kind: s}
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxWorkers {
		return fmt.Errorf("want a number from 1 to %d, auto, gpu or cpu", maxWorkers)
	}
	*v = procs{kind: "number", count: n}
	return nil
}

// maxWorkers is more than a node has use for.
const maxWorkers = 4096

// nodeCount is the value of --nnodes.
type nodeCount int

func (v *nodeCount) Type() string { return "number" }

func (v *nodeCount) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.Itoa(int(*v))
}

func (v *nodeCount) Set(s string) error {
	low, high, isRange := strings.Cut(s, ":")
	if isRange && low != high {
		return errors.New("want a single number: a job here has as many nodes at its end as at its start")
	}
	n, err := strconv.ParseUint(low, 10, 16)
	if err != nil || n < 1 {
		return errors.New("want a number from 1 to 65535")
	}
	*v = nodeCount(n)
	return nil
}

// cardList is the value of --devices.
type cardList []int

func (v *cardList) Type() string   { return "cards" }
func (v *cardList) String() string { return join(*v) }

func (v *cardList) Set(s string) error {
	ids, err := parseNumbers(s)
	if err != nil {
		return fmt.Errorf("%w: want physical card numbers with commas between them, such as 3,2,0,1", err)
	}
	*v = ids
	return nil
}

// rankList is the value of --local-ranks-filter.
type rankList []int

func (v *rankList) Type() string   { return "ranks" }
func (v *rankList) String() string { return join(*v) }

func (v *rankList) Set(s string) error {
	ids, err := parseNumbers(s)
	if err != nil {
		return fmt.Errorf("%w: want local ranks with commas between them, such as 0,1", err)
	}
	*v = ids
	return nil
}

// parseNumbers reads numbers from 0, each once, with commas between them.
func parseNumbers(s string) ([]int, error) {
	var numbers []int
	for field := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(field), 10, 16)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is no such number", field)
		case slices.Contains(numbers, int(n)):
			return nil, fmt.Errorf("%d is named twice", n)
		}
		numbers = append(numbers, int(n))
	}
	return numbers, nil
}

func join(numbers []int) string {
	s := make([]string, len(numbers))
	for i, n := range numbers {
		s[i] = strconv.Itoa(n)
	}
	return strings.Join(s, ",")
}

// size is the value of --memory-limit, in bytes.
type size int64

func (v *size) Type() string { return "size" }

func (v *size) String() string {
	if *v == 0 {
		return ""
	}
	return exactSize(int64(*v))
}

func (v *size) Set(s string) error {
	n, err := cudaops.ParseSize(s)
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("want more than nothing, such as 8GiB")
	}
	*v = size(n)
	return nil
}

// exactSize writes bytes in the largest unit that has a whole number of them.
func exactSize(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// choiceValue is the value of a flag with a few words, the first of which is the default.
type choiceValue struct {
	kind  string // what help calls it
	value *string
	words []string
}

func choice(kind string, value *string, first string, others ...string) *choiceValue {
	*value = first
	return &choiceValue{kind, value, append([]string{first}, others...)}
}

func (v *choiceValue) Type() string   { return v.kind }
func (v *choiceValue) String() string { return *v.value }

func (v *choiceValue) Set(s string) error {
	if !slices.Contains(v.words, s) {
		return fmt.Errorf("want one of %s", strings.Join(v.words, ", "))
	}
	*v.value = s
	return nil
}

// hostPort is the value of --rdzv-endpoint.
type hostPort struct {
	host string
	port int // 0: not said
}

func (v *hostPort) Type() string { return "HOST[:PORT]" }

func (v *hostPort) String() string {
	if v.host == "" || v.port == 0 {
		return v.host
	}
	return net.JoinHostPort(v.host, strconv.Itoa(v.port))
}

func (v *hostPort) Set(s string) error {
	host, port := s, ""
	address := false // whether the host must be an IPv6 address
	if rest, ok := strings.CutPrefix(s, "["); ok {
		address = true
		host, rest, ok = strings.Cut(rest, "]")
		if port = strings.TrimPrefix(rest, ":"); !ok || rest != "" && port == "" || rest != "" && port == rest {
			return errHostPort
		}
	} else if before, after, ok := strings.Cut(s, ":"); ok {
		if address = strings.Contains(after, ":"); !address {
			if host, port = before, after; port == "" {
				return errHostPort
			}
		}
	}
	n := uint64(0)
	var err error
	if port != "" {
		n, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil || host == "" || strings.ContainsAny(host, "[]/ ") || address && net.ParseIP(host) == nil {
		return errHostPort
	}
	v.host, v.port = host, int(n)
	return nil
}

var errHostPort = errors.New("want HOST or HOST:PORT, such as node0:29500")

// streams is the value of --redirects and --tee.
type streams launcher.StreamsByRank

func (v *streams) Type() string { return "which" }

func (v *streams) String() string {
	if len(v.Ranks) == 0 {
		if v.All == launcher.None {
			return ""
		}
		return strconv.Itoa(int(v.All))
	}
	var entries []string
	for _, rank := range slices.Sorted(maps.Keys(v.Ranks)) {
		entries = append(entries, fmt.Sprintf("%d:%d", rank, v.Ranks[rank]))
	}
	return strings.Join(entries, ",")
}

func (v *streams) Set(s string) error {
	bad := errors.New("want 0 (none), 1 (stdout), 2 (stderr), 3 (both), or those by local rank, as in 0:1,1:3")
	which := func(s string) (launcher.Streams, bool) {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		return launcher.Streams(n), err == nil && n >= 0 && n <= int(launcher.Both)
	}
	if all, ok := which(s); ok {
		*v = streams{All: all}
		return nil
	}
	ranks := map[int]launcher.Streams{}
	for entry := range strings.SplitSeq(s, ",") {
		number, text, _ := strings.Cut(entry, ":")
		rank, err := strconv.ParseUint(strings.TrimSpace(number), 10, 16)
		if err != nil {
			return bad
		}
		if _, twice := ranks[int(rank)]; twice {
			return fmt.Errorf("local rank %d is there twice", rank)
		}
		n, ok := which(text)
		if !ok {
			return bad
		}
		ranks[int(rank)] = n
	}
	*v = streams{Ranks: ranks}
	return nil
}

// seconds is a flag's value that is a time: seconds as torchrun has them, or a number with a unit.
type seconds struct{ d *time.Duration }

func (v seconds) String() string {
	if v.d == nil {
		return ""
	}
	return strconv.FormatFloat(v.d.Seconds(), 'g', -1, 64)
}
func (v seconds) Type() string { return "seconds" }

func (v seconds) Set(s string) error {
	d, err := time.ParseDuration(s)
	if n, notNumber := strconv.ParseFloat(s, 64); notNumber == nil {
		d, err = time.ParseDuration(strconv.FormatFloat(n, 'f', -1, 64) + "s")
	}
	if err != nil || d <= 0 {
		return errors.New("want a time above 0, such as 30 (seconds), 0.1 or 500ms")
	}
	*v.d = d
	return nil
}
