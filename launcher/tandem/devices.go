package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/machine"
)

func devicesCommand() command {
	return command{
		name:  "devices",
		about: "show the cards of this machine, and what CUDA_VISIBLE_DEVICES makes of them",
		usage: "[flags]",
		intro: `Shows the physical cards of this machine, and what this environment makes of them: the logical number of each visible card, the
primary card, what a process may use of a card's memory where something caps that, and the entries of CUDA_VISIBLE_DEVICES that have
no effect. For real cards also where CUDA's libraries are and of which version, and what those are needed for that are missing.`,
		examples: `  tandem devices
  TANDEM_SIM_CARDS=4 CUDA_VISIBLE_DEVICES=3,2,0,1 tandem devices --json
`,
		after: `
Environment:
  CUDA_VISIBLE_DEVICES   which cards are visible, and their order
  CUDA_DEVICE_LIMIT      caps on the memory of each card: 8GiB, 50%, or by logical number, 0:8GiB,1:50%
  TANDEM_SIM_CARDS       simulate cards on the host: 4, or 4x2GiB
  TANDEM_CUDA_PATH       folders to look into first for CUDA's libraries, with colons between them
`,
		flags: func() *flagSet { return devicesFlags(new(bool)) },
		run:   showDevices,
	}
}

func devicesFlags(asJSON *bool) *flagSet {
	fs := newFlagSet("devices")
	fs.group("Flags", func(f *pflag.FlagSet) {
		f.BoolVar(asJSON, "json", false, "print JSON: {cards: [{physical, logical, uuid, name, memory_bytes, capability, primary, limits: [{bytes, source, setting}]}], ignored: [{entry, reason}], libraries: [{name, for, path, version, problem}]}, where logical is null for a card that is not visible, the first limit is the smallest, which holds, and simulated cards need no libraries")
	})
	return fs
}

// showDevices is tandem devices.
func showDevices(_ context.Context, args []string, stdout, _ io.Writer) error {
	asJSON := false
	fs := devicesFlags(&asJSON)
	if err := fs.parse(args, os.LookupEnv); err != nil {
		return err
	}
	if err := fs.noArguments(); err != nil {
		return err
	}
	m, err := machine.Inspect()
	if err != nil {
		return &usageError{err}
	}
	var libraries []machine.Library
	if !simulated(m) {
		libraries = machine.Libraries()
	}
	limits, err := memoryLimits(m)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(stdout, deviceReport(m, limits, libraries))
	}
	var text strings.Builder
	printDevices(&text, m)
	printLimits(&text, limits)
	printLibraries(&text, libraries)
	_, err = io.WriteString(stdout, text.String())
	return err
}

// simulated is whether the cards are simulated, which takes no libraries.
func simulated(m machine.Machine) bool { return len(m.Cards) > 0 && m.Cards[0].Properties.Simulated }

// memoryLimits are those of each visible card, by logical number, for a process of this environment. Where CUDA does not work there are none.
func memoryLimits(m machine.Machine) (map[int][]cudaops.Limit, error) {
	var wrong *cudaops.VariableError
	if errors.As(m.CUDA, &wrong) {
		return nil, &usageError{wrong}
	}
	limits := map[int][]cudaops.Limit{}
	for _, c := range m.Cards {
		if c.Logical < 0 || m.CUDA != nil {
			continue
		}
		all, err := cudaops.MemoryLimits(c.Logical)
		if errors.As(err, &wrong) {
			return nil, &usageError{wrong}
		}
		if err != nil {
			return nil, err
		}
		limits[c.Logical] = all
	}
	return limits, nil
}

// devicesJSON is what tandem devices --json prints.
type devicesJSON struct {
	Cards     []cardJSON    `json:"cards"`
	Ignored   []ignoredJSON `json:"ignored"`
	Libraries []libraryJSON `json:"libraries"`
}

type libraryJSON struct {
	Name    string `json:"name"`
	For     string `json:"for"`
	Path    string `json:"path"`
	Version string `json:"version"`
	Problem string `json:"problem,omitempty"`
}

type cardJSON struct {
	Physical   int    `json:"physical"`
	Logical    *int   `json:"logical"`
	UUID       string `json:"uuid"`
	Name       string `json:"name"`
	Memory     int64  `json:"memory_bytes"`
	Capability string `json:"capability"`
	Primary    bool   `json:"primary"`

	Limits []limitJSON `json:"limits"` // the smallest first; null where logical is
}

type limitJSON struct {
	Bytes   int64  `json:"bytes"`
	Source  string `json:"source"`
	Setting string `json:"setting,omitempty"`
}

type ignoredJSON struct {
	Entry  string `json:"entry"` // as CUDA_VISIBLE_DEVICES has it
	Reason string `json:"reason"`
}

func deviceReport(m machine.Machine, limits map[int][]cudaops.Limit, libraries []machine.Library) devicesJSON {
	report := devicesJSON{Cards: []cardJSON{}, Ignored: []ignoredJSON{}, Libraries: []libraryJSON{}} // empty lists, not null
	for _, c := range m.Cards {
		card := cardJSON{
			Physical: c.Physical, Logical: logical(c), UUID: c.Properties.UUID, Name: c.Properties.Name,
			Memory: c.Properties.TotalMemory, Capability: capability(c), Primary: c.Primary(),
		}
		for _, l := range limits[c.Logical] {
			card.Limits = append(card.Limits, limitJSON{l.Bytes, l.Source.String(), l.Setting})
		}
		report.Cards = append(report.Cards, card)
	}
	for _, e := range m.Visibility.Ignored {
		report.Ignored = append(report.Ignored, ignoredJSON{e.Text, e.Reason})
	}
	for _, l := range libraries {
		entry := libraryJSON{Name: l.Name, For: l.For, Path: l.Path, Version: l.Version}
		if l.Err != nil {
			entry.Problem = l.Err.Error()
		}
		report.Libraries = append(report.Libraries, entry)
	}
	return report
}

// logical is a card's logical number, or nil where it is not visible.
func logical(c machine.Card) *int {
	if c.Logical < 0 {
		return nil
	}
	return &c.Logical
}

func capability(c machine.Card) string {
	return fmt.Sprintf("%d.%d", c.Properties.Major, c.Properties.Minor)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printDevices prints the cards for people.
func printDevices(w io.Writer, m machine.Machine) {
	if len(m.Cards) == 0 {
		printNoCards(w, m)
		return
	}
	linked := false
	for _, c := range m.Cards {
		linked = linked || len(c.Links) > 0
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		if !linked {
			cells = cells[:len(cells)-1]
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	row("PHYSICAL", "LOGICAL", "NAME", "MEMORY", "CAPABILITY", "UUID", "LINKS")
	for _, c := range m.Cards {
		row(physicalText(c), logicalText(c), c.Properties.Name, sizeText(c.Properties.TotalMemory), capability(c), c.Properties.UUID, linksText(c))
	}
	_ = t.Flush() // what can't be printed is for nobody to read
	fmt.Fprintf(w, "\n%s\n", visibilityText(m.Visibility))
	for _, e := range m.Visibility.Ignored {
		fmt.Fprintf(w, "  entry %d, %q, has no effect: %s\n", e.Entry, e.Text, e.Reason)
	}
	for _, c := range m.Cards {
		if c.Problem != nil {
			fmt.Fprintf(w, "card %d: %v\n", c.Physical, c.Problem)
		}
	}
	if m.Ambiguous {
		fmt.Fprintln(w, "Cards are of several kinds, and CUDA counts the fastest first. For the numbers above: CUDA_DEVICE_ORDER=PCI_BUS_ID")
	}
	if m.CUDA != nil {
		fmt.Fprintf(w, "Programs can't use these cards: %v\n", m.CUDA)
	}
}

// printLimits prints, for people, the caps on cards that hold.
func printLimits(w io.Writer, limits map[int][]cudaops.Limit) {
	for i := range len(limits) {
		if l := limits[i][0]; l.Source != cudaops.LimitByCard {
			fmt.Fprintf(w, "A process may use of %s: %v.\n", cudaops.String(i), l)
		}
	}
}

// printLibraries prints CUDA's libraries for people: those that are there as a table, then what the others would be good for.
func printLibraries(w io.Writer, libraries []machine.Library) {
	if len(libraries) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nLIBRARY\tVERSION\tFILE")
	for _, l := range libraries {
		version, path := l.Version, l.Path
		if l.Err != nil {
			version, path = "-", "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", l.Name, version, path)
	}
	_ = t.Flush() // what can't be printed is for nobody to read
	for i, l := range libraries {
		if l.Err == nil {
			continue
		}
		fmt.Fprintf(w, "%s, for %s, can't be used: %v\n", l.Name, l.For, l.Err)
		if i == 0 {
			break // without the driver the others would be of no use
		}
	}
}

func printNoCards(w io.Writer, m machine.Machine) {
	fmt.Fprintf(w, "This machine has no card")
	if m.NVML != nil {
		fmt.Fprintf(w, " that is known: %v", m.NVML)
	}
	if m.CUDA != nil {
		fmt.Fprintf(w, "; %v", m.CUDA)
	}
	fmt.Fprintln(w, ".\nTo simulate four cards on the host: TANDEM_SIM_CARDS=4 tandem devices")
}

func physicalText(c machine.Card) string {
	if c.Physical == machine.Unknown {
		return "-"
	}
	return strconv.Itoa(c.Physical)
}

func logicalText(c machine.Card) string {
	switch {
	case c.Primary():
		return "0 (primary)"
	case c.Logical < 0:
		return "not visible"
	}
	return strconv.Itoa(c.Logical)
}

func sizeText(bytes int64) string {
	if bytes < 0 {
		return "-"
	}
	return cudaops.FormatSize(bytes)
}

func linksText(c machine.Card) string {
	links := make([]string, len(c.Links))
	for i, l := range c.Links {
		links[i] = fmt.Sprintf("%d:%s", l.To, l.Kind)
	}
	return strings.Join(links, " ")
}

func visibilityText(v cudaops.Visibility) string {
	if !v.Set {
		return "CUDA_VISIBLE_DEVICES is not set: all cards are visible."
	}
	s := fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q shows ", v.Value)
	switch n := len(v.Cards); {
	case n == 0 && v.Repeated:
		return s + "no card, since it names one twice:"
	case n == 0:
		s += "no card"
	case n == 1:
		s += "1 card"
	default:
		s += fmt.Sprintf("%d cards", n)
	}
	if len(v.Ignored) > 0 {
		return s + ":"
	}
	return s + "."
}
