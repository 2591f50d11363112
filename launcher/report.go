package launcher

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// order puts the root cause first: what is no consequence, what failed by itself before what the launcher stopped, and the earliest.
func order(failures []WorkerFailure) {
	late := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(failures, func(a, b WorkerFailure) int {
		return cmp.Or(
			late(a.Consequence)-late(b.Consequence),
			late(a.Stopped)-late(b.Stopped),
			a.Time.Compare(b.Time),
			a.Rank-b.Rank,
		)
	})
}

// Report is the whole story for a person: the root cause with the end of its stderr, then the others, a line each.
func (e *JobError) Report() string {
	var s strings.Builder
	fmt.Fprintf(&s, "job %s failed", e.RunID)
	switch e.Restarts {
	case 0:
	case 1:
		s.WriteString(" again after 1 restart")
	default:
		fmt.Fprintf(&s, " again after %d restarts", e.Restarts)
	}
	root := e.Root()
	fmt.Fprintf(&s, "\nroot cause: rank %d (%s), %s\n", root.Rank, root.where(), root.Time.Format("2006-01-02 15:04:05.000"))
	fmt.Fprintf(&s, "  %s\n", root.ended())
	if root.Error != root.ended() {
		fmt.Fprintf(&s, "  error: %s\n", indented(root.Error))
	}
	if stack := strings.TrimSpace(root.Stack); stack != "" && !strings.Contains(root.Tail, stack) {
		fmt.Fprintf(&s, "  stack:\n    %s\n", indented(stack))
	}
	if root.Tail != "" {
		fmt.Fprintf(&s, "  the end of its stderr:\n    %s\n", indented(root.Tail))
	}
	if root.LogFile != "" {
		fmt.Fprintf(&s, "  all of it: %s\n", root.LogFile)
	}
	if len(e.Failures) > 1 {
		s.WriteString("then:\n")
	}
	for _, f := range e.Failures[1:] {
		fmt.Fprintf(&s, "  rank %d (%s): %s", f.Rank, f.where(), f.ended())
		if first, _, _ := strings.Cut(f.Error, "\n"); f.Error != f.ended() {
			fmt.Fprintf(&s, ": %s", first)
		}
		if f.Consequence && f.By >= 0 {
			fmt.Fprintf(&s, " (because of rank %d)", f.By)
		}
		s.WriteByte('\n')
	}
	return s.String()
}

// where says which process it was.
func (f WorkerFailure) where() string {
	s := fmt.Sprintf("pid %d, host %s", f.PID, f.Host)
	if f.Card != "" {
		s += ", " + f.Card
	}
	return s
}

// ended says how the process ended.
func (f WorkerFailure) ended() string {
	s := fmt.Sprintf("exit status %d", f.ExitCode)
	switch {
	case f.Hurried:
		s = "did not end by itself, and was killed by the launcher's " + f.Signal
	case f.Signal == "SIGKILL" && !f.Stopped:
		s = "killed by SIGKILL (out of memory killer?)"
	case f.Signal != "":
		s = "killed by " + f.Signal
	}
	if f.Stopped {
		s = "stopped by the launcher: " + s
	}
	if f.State != "" {
		s += "; it " + f.State
	}
	return s
}

// indented puts the lines after the first under it.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n    ") }
