package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/tandem-train/tandem/internal/atomicfile"
)

// row is one number. Its JSON has exactly the exported fields, null where there is none.
type row struct {
	Suite    string `json:"suite"`
	Workload string `json:"workload"`
	// Batch is the number of samples a step.
	Batch *int `json:"batch"`
	// Mode is how it was run: "2 cores". In a row of a peer, its name stands before that: "gorgonia, 2 cores".
	Mode   string  `json:"mode"`
	Metric string  `json:"metric"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	// Peer is what Value is compared with: another library, or a limit of the machine.
	Peer *string `json:"peer"`
	// Ratio is our time, or memory, over the peer's for the same work: smaller is better, and 1 is a tie.
	Ratio *float64 `json:"ratio"`

	spread float64 // of Value, as a share of it; 0 for what is derived
	limit  bool    // whether the peer is a limit of the machine
}

// The units of what is better the smaller it is; all others are units of speed.
const (
	milliseconds = "ms"
	microseconds = "us"
	mebibytes    = "MiB"
)

// stepTime is a row for the time of a step.
func stepTime(workload string, batch int, mode string, t timing) row {
	return row{Workload: workload, Batch: &batch, Mode: mode, Metric: "step", Value: 1e3 * t.seconds, Unit: milliseconds, spread: t.spread}
}

// speed is a row for work, counted in unit, that was done in a second.
func speed(workload, mode, metric string, work float64, unit string, t timing) row {
	return row{Workload: workload, Mode: mode, Metric: metric, Value: work / t.seconds, Unit: unit, spread: t.spread}
}

// against compares r with what a peer reached in the same unit.
func (r row) against(peer string, value float64) row {
	ratio := value / r.Value
	if r.smallerIsBetter() {
		ratio = r.Value / value
	}
	r.Peer, r.Ratio = &peer, &ratio
	return r
}

func (r row) smallerIsBetter() bool {
	return r.Unit == milliseconds || r.Unit == microseconds || r.Unit == mebibytes
}

// theirs is what the peer reached.
func (r row) theirs() float64 {
	if r.smallerIsBetter() {
		return r.Value / *r.Ratio
	}
	return r.Value * *r.Ratio
}

// by says that a peer did this.
func (r row) by(peer string) row {
	r.Mode = peer + ", " + r.Mode
	return r
}

// batch is r's batch size for people.
func batch(r row) string {
	if r.Batch == nil {
		return ""
	}
	return fmt.Sprint(*r.Batch)
}

// writeJSON writes the rows to a file, one a line.
func writeJSON(name string, rows []row) error {
	lines := make([][]byte, len(rows))
	for i, r := range rows {
		var err error
		if lines[i], err = json.Marshal(r); err != nil {
			return fmt.Errorf("--json %s: %s: %w", name, r.Workload, err)
		}
	}
	if err := atomicfile.Write(name, fmt.Appendf(nil, "[\n%s\n]\n", bytes.Join(lines, []byte(",\n")))); err != nil {
		return fmt.Errorf("--json %s: %w", name, err)
	}
	return nil
}

// writeTable writes the rows as a Markdown table whose columns are aligned, so that it reads well as it is, too.
func writeTable(w io.Writer, rows []row) {
	table := [][]string{{"workload", "batch", "mode", "metric", "value", "unit", "±", "peer", "ratio", "that is"}}
	right := []bool{false, true, false, false, true, false, true, false, true, true}
	for _, r := range rows {
		cells := []string{r.Workload, batch(r), r.Mode, r.Metric, number(r.Value), r.Unit, "", "", "", ""}
		if r.spread > 0 {
			cells[6] = fmt.Sprintf("%.1f %%", 100*r.spread)
		}
		if r.Peer != nil {
			cells[7], cells[8], cells[9] = *r.Peer, number(*r.Ratio), verdict(r)
		}
		table = append(table, cells)
	}
	alignTable(w, table, right)
}

// alignTable writes a table of which the first line is the head, with its columns aligned: some to the right.
func alignTable(w io.Writer, table [][]string, right []bool) {
	width := make([]int, len(right))
	for _, cells := range table {
		for i, c := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for n, cells := range table {
		for i, c := range cells {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if right[i] {
				c = pad + c
			} else {
				c += pad
			}
			fmt.Fprintf(w, "| %s ", c)
		}
		fmt.Fprintln(w, "|")
		if n > 0 {
			continue
		}
		for i := range cells {
			end := "-"
			if right[i] {
				end = ":"
			}
			fmt.Fprintf(w, "|-%s%s", strings.Repeat("-", width[i]), end)
		}
		fmt.Fprintln(w, "|")
	}
}

// verdict says a ratio in words.
func verdict(r row) string {
	switch x := *r.Ratio; {
	case r.limit:
		return fmt.Sprintf("%.0f %% of it", 100/x)
	case r.Unit == mebibytes:
		return fmt.Sprintf("%.3g times the memory", x)
	case x > 1:
		return fmt.Sprintf("%.3g times slower", x)
	default:
		return fmt.Sprintf("%.3g times faster", 1/x)
	}
}

// number writes x with three digits that say something, and whole from 1000 on.
func number(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
