package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/tandem-train/tandem/cudaops"
)

// SeeUse finds out what only this user's processes tell: the limits that they have on cards and, since simulated cards keep no common
// account, what they hold of those. It fills in Limits, and MemoryUsed and Processes of simulated cards.
func (m *Machine) SeeUse() error {
	if len(m.Cards) == 0 {
		return nil
	}
	return m.seeUse(os.DirFS("/proc"))
}

func (m *Machine) seeUse(proc fs.FS) error {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return fmt.Errorf("machine: limits and use of cards are read from /proc, as Linux has it: %w", err)
	}
	for i := range m.Cards {
		if c := &m.Cards[i]; c.Properties.Simulated {
			c.MemoryUsed = 0
		}
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // no process
		}
		maps, err := fs.ReadFile(proc, e.Name()+"/maps")
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ESRCH):
			continue // it has ended, or is another user's
		case err != nil:
			return fmt.Errorf("machine: process %d: %w", pid, err)
		}
		held, limits, err := readMarks(string(maps))
		if err != nil {
			return fmt.Errorf("machine: process %d: %w", pid, err)
		}
		for i := range m.Cards {
			c := &m.Cards[i]
			if n := held[c.Properties.UUID]; n > 0 && c.Properties.Simulated {
				c.MemoryUsed += n
				c.Processes = append(c.Processes, cudaops.ProcessMemory{PID: pid, Bytes: n})
			}
			if limit, ok := limits[c.Properties.UUID]; ok {
				if c.Limits == nil {
					c.Limits = map[int]int64{}
				}
				c.Limits[pid] = limit
			}
		}
	}
	return nil
}

// readMarks reads a maps file: how many bytes of each card, by UUID, a process has marked as its own, and how many it may hold.
func readMarks(maps string) (held, limits map[string]int64, err error) {
	held, limits = map[string]int64{}, map[string]int64{}
	for line := range strings.Lines(maps) {
		at := strings.Index(line, cudaops.SimulatedMark)
		if at < 0 {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(line[at:]), " ")
		if mark, ok := strings.CutPrefix(name, cudaops.LimitMark); ok {
			dash := strings.LastIndexByte(mark, '-')
			bytes, err := strconv.ParseInt(mark[dash+1:], 10, 64)
			if dash < 0 || err != nil {
				return nil, nil, fmt.Errorf("maps: %q is no limit", name)
			}
			limits[mark[:dash]] = bytes
			continue
		}
		span, _, _ := strings.Cut(line, " ")
		from, to, _ := strings.Cut(span, "-")
		first, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, nil, fmt.Errorf("maps: %q: %w", span, err)
		}
		held[strings.TrimPrefix(name, cudaops.SimulatedMark)] += int64(end - first)
	}
	return held, limits, nil
}
