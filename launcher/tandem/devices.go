package main

import (
	"context"
	"encoding/json"
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
primary card, and the entries of CUDA_VISIBLE_DEVICES that have no effect.`,
		examples: `  tandem devices
  TANDEM_SIM_CARDS=4 CUDA_VISIBLE_DEVICES=3,2,0,1 tandem devices --json
`,
		after: `
Environment:
  CUDA_VISIBLE_DEVICES   which cards are visible, and their order
  TANDEM_SIM_CARDS       simulate cards on the host: 4, or 4x2GiB
`,
		flags: func() *flagSet { return devicesFlags(new(bool)) },
		run:   showDevices,
	}
}

func devicesFlags(asJSON *bool) *flagSet {
	fs := newFlagSet("devices")
	fs.group("Flags", func(f *pflag.FlagSet) {
		f.BoolVar(asJSON, "json", false, "print JSON: {cards: [{physical, logical, uuid, name, memory_bytes, capability, primary}], ignored: [{entry, reason}]}, where logical is null for a card that is not visible")
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
	if asJSON {
		return printJSON(stdout, deviceReport(m))
	}
	printDevices(stdout, m)
	return nil
}

// devicesJSON is what tandem devices --json prints.
type devicesJSON struct {
	Cards   []cardJSON    `json:"cards"`
	Ignored []ignoredJSON `json:"ignored"`
}

type cardJSON struct {
	Physical   int    `json:"physical"`
	Logical    *int   `json:"logical"`
	UUID       string `json:"uuid"`
	Name       string `json:"name"`
	Memory     int64  `json:"memory_bytes"`
	Capability string `json:"capability"`
	Primary    bool   `json:"primary"`
}

type ignoredJSON struct {
	Entry  string `json:"entry"` // as CUDA_VISIBLE_DEVICES has it
	Reason string `json:"reason"`
}

func deviceReport(m machine.Machine) devicesJSON {
	report := devicesJSON{Cards: []cardJSON{}, Ignored: []ignoredJSON{}} // empty lists, not null
	for _, c := range m.Cards {
		report.Cards = append(report.Cards, cardJSON{
			Physical: c.Physical, Logical: logical(c), UUID: c.Properties.UUID, Name: c.Properties.Name,
			Memory: c.Properties.TotalMemory, Capability: capability(c), Primary: c.Primary(),
		})
	}
	for _, e := range m.Visibility.Ignored {
		report.Ignored = append(report.Ignored, ignoredJSON{e.Text, e.Reason})
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
		row(strconv.Itoa(c.Physical), logicalText(c), c.Properties.Name, sizeText(c.Properties.TotalMemory), capability(c), c.Properties.UUID, linksText(c))
	}
	_ = t.Flush() // what can't be printed is for nobody to read
	fmt.Fprintf(w, "\n%s\n", visibilityText(m.Visibility))
	for _, e := range m.Visibility.Ignored {
		fmt.Fprintf(w, "  entry %d, %q, has no effect: %s\n", e.Entry, e.Text, e.Reason)
	}
	real := false
	for _, c := range m.Cards {
		real = real || !c.Properties.Simulated
		if c.Problem != nil {
			fmt.Fprintf(w, "card %d: %v\n", c.Physical, c.Problem)
		}
	}
	if m.Ambiguous {
		fmt.Fprintln(w, "Cards are of several kinds, and CUDA counts the fastest first. For the numbers above: CUDA_DEVICE_ORDER=PCI_BUS_ID")
	}
	if real {
		fmt.Fprintln(w, "This version of Tandem computes on simulated cards and on the host only: TANDEM_SIM_CARDS=4 simulates four.")
	}
}

func printNoCards(w io.Writer, m machine.Machine) {
	fmt.Fprintf(w, "This machine has no card")
	if m.NVML != nil {
		fmt.Fprintf(w, " that is known: %v", m.NVML)
	}
	fmt.Fprintln(w, ".\nTo simulate four cards on the host: TANDEM_SIM_CARDS=4 tandem devices")
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
