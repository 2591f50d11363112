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

// SeeUse finds out what this user's processes hold of simulated cards, which keep no common account. It fills in MemoryUsed and Processes.
// Of real cards Inspect has it already.
func (m *Machine) SeeUse() error {
	if len(m.Cards) == 0 || !m.Cards[0].Properties.Simulated {
		return nil
	}
	return m.seeUse(os.DirFS("/proc"))
}

func (m *Machine) seeUse(proc fs.FS) error {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return fmt.Errorf("machine: use of simulated cards is read from /proc, as Linux has it: %w", err)
	}
	for i := range m.Cards {
		m.Cards[i].MemoryUsed = 0
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
		held, err := simulatedMemory(string(maps))
		if err != nil {
			return fmt.Errorf("machine: process %d: %w", pid, err)
		}
		for i := range m.Cards {
			c := &m.Cards[i]
			if n := held[c.Properties.UUID]; n > 0 {
				c.MemoryUsed += n
				c.Processes = append(c.Processes, cudaops.ProcessMemory{PID: pid, Bytes: n})
			}
		}
	}
	return nil
}

// simulatedMemory reads a maps file: how many bytes of each card, by UUID, a process has marked as its own.
func simulatedMemory(maps string) (map[string]int64, error) {
	held := map[string]int64{}
	for line := range strings.Lines(maps) {
		at := strings.Index(line, cudaops.SimulatedMark)
		if at < 0 {
			continue
		}
		uuid, _, _ := strings.Cut(strings.TrimSpace(line[at+len(cudaops.SimulatedMark):]), " ")
		span, _, _ := strings.Cut(line, " ")
		from, to, _ := strings.Cut(span, "-")
		first, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("maps: %q: %w", span, err)
		}
		held[uuid] += int64(end - first)
	}
	return held, nil
}
