package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/machine"
)

func topCommand() command {
	return command{
		name:  "top",
		about: "show what cards and jobs of this machine do",
		usage: "[flags]",
		intro: `Shows the cards of this machine and how busy they are, and the workers of your jobs on it: rank, process, card, what they use of
its memory and may use at most, CPU and memory, with those of the processes that they have started; then your other processes on
cards. One that uses several cards is there with each. It ends at Ctrl-C.

What is not known is "-". CPU% is of one CPU: over the last interval, or since the worker's start where there was none before.`,
		examples: `  tandem top
  tandem top --once --json
`,
		flags: func() *flagSet { return new(topOptions).flagSet() },
		run:   showTop,
	}
}

type topOptions struct {
	once, json bool
	interval   time.Duration
}

func (o *topOptions) flagSet() *flagSet {
	fs := newFlagSet("top")
	fs.group("Flags", func(f *pflag.FlagSet) {
		o.interval = 2 * time.Second
		f.BoolVar(&o.once, "once", false, "print once, and end")
		f.BoolVar(&o.json, "json", false, "print JSON, an object a line; null is what is not known")
		f.Var(seconds{&o.interval}, "interval", "time from one look to the next, in `seconds`")
	})
	return fs
}

// showTop is tandem top.
func showTop(ctx context.Context, args []string, stdout, _ io.Writer) error {
	o := new(topOptions)
	fs := o.flagSet()
	if err := fs.parse(args, os.LookupEnv); err != nil {
		return err
	}
	if err := fs.noArguments(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return o.show(ctx, stdout)
}

// show prints a view at each interval, until the context ends.
func (o *topOptions) show(ctx context.Context, stdout io.Writer) error {
	print := printPlain
	if f, ok := stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) && !o.once {
		print = screen{f}.draw
	}
	if o.json {
		print = printLine
	}
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for before := (view{}); ; {
		v, err := takeView(before)
		if err != nil {
			return err
		}
		if err := print(stdout, v); err != nil {
			return err
		}
		if o.once {
			return nil
		}
		before = v
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// view is the machine at one time.
type view struct {
	Cards     []cardView   `json:"cards"`
	Processes []workerView `json:"processes"`

	taken time.Time
	cpu   map[int]time.Duration // CPU time by first process
	note  string
}

// cardView is what a card does. Pointers are nil where it is not known.
type cardView struct {
	Physical    int    `json:"physical"`
	Logical     *int   `json:"logical"`
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	Utilization *int   `json:"utilization_percent"`
	MemoryUsed  *int64 `json:"memory_used_bytes"`
	Memory      int64  `json:"memory_bytes"`
}

// workerView is what a worker does on a card; one that is on several is there once for each.
type workerView struct {
	RunID      *string `json:"run_id"` // null of a process that is of no job, as rank is
	Rank       *int    `json:"rank"`
	PID        int     `json:"pid"`
	Card       *int    `json:"card"`      // physical
	Cap        *string `json:"cap"`       // by CUDA_DEVICE_LIMIT
	Limit      *int64  `json:"cap_bytes"` // by all that limits it, once it has found its cards
	CPU        float64 `json:"cpu_percent"`
	Resident   int64   `json:"resident_bytes"`
	CardMemory *int64  `json:"card_memory_bytes"`
	Command    string  `json:"command"`
}

func takeView(before view) (view, error) {
	m, err := machine.Inspect()
	if err != nil {
		return view{}, &usageError{err}
	}
	if err := m.SeeUse(); err != nil {
		return view{}, err
	}
	workers, uptime, err := scan(os.DirFS("/proc"), os.Getuid(), onCards(m))
	if err != nil {
		return view{}, err
	}
	return newView(m, workers, uptime, before, time.Now()), nil
}

// onCards are the processes that use cards.
func onCards(m machine.Machine) map[int]bool {
	pids := map[int]bool{}
	for _, c := range m.Cards {
		for _, p := range c.Processes {
			pids[p.PID] = true
		}
	}
	return pids
}

// newView puts together what is known at a time, with the view before, if there was one.
func newView(m machine.Machine, workers []worker, uptime time.Duration, before view, now time.Time) view {
	v := view{Cards: []cardView{}, Processes: []workerView{}, taken: now, cpu: map[int]time.Duration{}}
	for _, c := range m.Cards {
		v.Cards = append(v.Cards, cardView{
			Physical: c.Physical, Logical: logical(c), UUID: c.Properties.UUID, Name: c.Properties.Name,
			Utilization: known(c.Utilization), MemoryUsed: known(c.MemoryUsed), Memory: c.Properties.TotalMemory,
		})
	}
	if len(m.Cards) == 0 && m.NVML != nil {
		v.note = fmt.Sprintf("No card is known: %v.", m.NVML)
	}
	for _, w := range workers {
		p := workerView{
			PID: w.pid, Resident: w.resident, Command: w.command,
			CPU: percent(w.cpu, uptime-w.started),
		}
		if w.rank != noRank {
			p.RunID, p.Rank = &w.runID, &w.rank
		}
		if cpu, ok := before.cpu[w.pid]; ok {
			p.CPU = percent(max(0, w.cpu-cpu), now.Sub(before.taken))
		}
		v.cpu[w.pid] = w.cpu
		if w.cap != "" {
			p.Cap = &w.cap
		}
		others := len(v.Processes)
		for i := range m.Cards {
			c := &m.Cards[i]
			q := p
			q.Card, q.CardMemory, q.Limit = &c.Physical, cardMemory(c.Processes, w.pids), cardLimit(c.Limits, w.pids)
			if c.Properties.UUID == w.uuid || q.CardMemory != nil {
				v.Processes = append(v.Processes, q)
			}
		}
		if len(v.Processes) == others {
			v.Processes = append(v.Processes, p)
		}
	}
	return v
}

// known is nil for what is not.
func known[T int | int64](n T) *T {
	if n == machine.Unknown {
		return nil
	}
	return &n
}

func percent(part, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole) * 100
}

// cardMemory is what processes hold of a card's memory: nil where nothing is known of them.
func cardMemory(on []cudaops.ProcessMemory, pids []int) *int64 {
	var sum *int64
	for _, p := range on {
		if !slices.Contains(pids, p.PID) || p.Bytes == machine.Unknown {
			continue
		}
		if sum == nil {
			sum = new(int64)
		}
		*sum += p.Bytes
	}
	return sum
}

// cardLimit is the smallest limit that processes have on a card: nil where none tells of one.
func cardLimit(on map[int]int64, pids []int) *int64 {
	var least *int64
	for _, pid := range pids {
		if limit, ok := on[pid]; ok && (least == nil || limit < *least) {
			least = &limit
		}
	}
	return least
}

// capText is a worker's cap for people: its bytes where they are known.
func (p *workerView) capText() string {
	if p.Limit != nil {
		return sizeText(*p.Limit)
	}
	return orDash(p.Cap, printable)
}

// text is the view for people.
func (v view) text() string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(v.Cards) > 0 {
		fmt.Fprintln(t, "CARD\tLOGICAL\tNAME\tUTIL\tMEMORY USED\tMEMORY")
	}
	for _, c := range v.Cards {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n", c.Physical, orDash(c.Logical, strconv.Itoa), c.Name,
			orDash(c.Utilization, func(n int) string { return strconv.Itoa(n) + "%" }), orDash(c.MemoryUsed, sizeText), sizeText(c.Memory))
	}
	_ = t.Flush() // to memory
	if v.note != "" {
		b.WriteString(v.note + "\n")
	}
	b.WriteByte('\n')
	if len(v.Processes) == 0 {
		b.WriteString("No job of yours runs on this machine, nor any other process on its cards.\n")
		return b.String()
	}
	fmt.Fprintln(t, "JOB\tRANK\tPID\tCARD\tCAP\tCARD MEMORY\tCPU%\tMEMORY\tCOMMAND")
	for _, p := range v.Processes {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%.0f\t%s\t%s\n", orDash(p.RunID, printable), orDash(p.Rank, strconv.Itoa), p.PID, orDash(p.Card, strconv.Itoa),
			p.capText(), orDash(p.CardMemory, sizeText), p.CPU, sizeText(p.Resident), p.Command)
	}
	_ = t.Flush()
	return b.String()
}

func orDash[T any](p *T, format func(T) string) string {
	if p == nil {
		return "-"
	}
	return format(*p)
}

func printPlain(w io.Writer, v view) error {
	_, err := fmt.Fprintf(w, "%s\n%s\n", v.taken.Format(time.TimeOnly), v.text())
	return err
}

func printLine(w io.Writer, v view) error { return json.NewEncoder(w).Encode(v) }

// screen is a terminal on which each view takes the place of the one before.
type screen struct{ terminal *os.File }

func (s screen) draw(w io.Writer, v view) error {
	width, height, err := term.GetSize(int(s.terminal.Fd()))
	if err != nil {
		width, height = 0, 0
	}
	_, err = w.Write(frame(v, width, height))
	return err
}

// The sequences that move a terminal's cursor to its first place, and clear what is behind the cursor on the line or the screen.
const (
	home       = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

// frame is what draws a view over the one before, no larger than the terminal. A terminal may have a size of 0, which nobody has told it.
func frame(v view, width, height int) []byte {
	if width == 0 || height == 0 {
		width, height = 80, 24
	}
	var b bytes.Buffer
	b.WriteString(home)
	lines := strings.Split(fmt.Sprintf("tandem top  %s  (Ctrl-C ends)\n\n%s", v.taken.Format(time.TimeOnly), strings.TrimRight(v.text(), "\n")), "\n")
	for i, line := range lines {
		if i == height-1 {
			break
		}
		if r := []rune(line); len(r) > width {
			line = string(r[:width])
		}
		b.WriteString(line + clearLine + "\r\n")
	}
	b.WriteString(clearBelow)
	return b.Bytes()
}
