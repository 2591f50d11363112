package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// console is what people see of a run.
type console struct {
	results io.Writer // lines that stay: what each epoch reached
	notes   io.Writer // messages, and progress within an epoch
	meters  meterKind
}

type meterKind int

const (
	noMeter meterKind = iota
	lineMeters
	barMeters // the notes are a terminal
)

func newConsole(stdout, stderr io.Writer, o *options) *console {
	c := &console{results: stdout, notes: stderr, meters: lineMeters}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		c.meters = barMeters
	}
	switch {
	case o.quiet:
		return silentConsole()
	case o.noProgress:
		c.meters = noMeter
	}
	return c
}

// silentConsole shows nothing.
func silentConsole() *console {
	return &console{results: io.Discard, notes: io.Discard, meters: noMeter}
}

// resultf prints a line that stays.
func (c *console) resultf(format string, args ...any) { fmt.Fprintf(c.results, format+"\n", args...) }

// notef prints a message in passing.
func (c *console) notef(format string, args ...any) { fmt.Fprintf(c.notes, format+"\n", args...) }

// meter shows how far training is within an epoch.
type meter interface {
	step(images int, loss float64)
	stop()
}

// meter starts a meter for a number of steps and images.
func (c *console) meter(title string, steps, images int) meter {
	switch c.meters {
	case lineMeters:
		return &lineMeter{out: c.notes, title: title, steps: steps, every: max(steps/linesPerEpoch, 1), since: time.Now()}
	case barMeters:
		return &barMeter{title, progressbar.NewOptions(images,
			progressbar.OptionSetWriter(c.notes),
			progressbar.OptionSetDescription(title),
			progressbar.OptionSetWidth(20), // so that the line fits 80 columns
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("images"),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)}
	}
	return silent{}
}

type silent struct{}

func (silent) step(int, float64) {}
func (silent) stop()             {}

// linesPerEpoch is how often a lineMeter says where training is.
const linesPerEpoch = 10

// lineMeter prints a line now and then, for logs.
type lineMeter struct {
	out          io.Writer
	title        string
	steps, every int

	done   int
	images int // since the last line
	since  time.Time
}

func (m *lineMeter) step(images int, loss float64) {
	m.done++
	m.images += images
	if m.done%m.every != 0 {
		return
	}
	now := time.Now()
	fmt.Fprintf(m.out, "%s  step %d/%d  loss %.4f  %.0f images/s\n", m.title, m.done, m.steps, loss, float64(m.images)/now.Sub(m.since).Seconds())
	m.images, m.since = 0, now
}

func (m *lineMeter) stop() {}

// barMeter draws a bar. What can't be drawn on a terminal is not worth an error, so those of the bar are left.
type barMeter struct {
	title string
	bar   *progressbar.ProgressBar
}

func (m *barMeter) step(images int, loss float64) {
	m.bar.Describe(fmt.Sprintf("%s  loss %.4f", m.title, loss))
	_ = m.bar.Add(images)
}

func (m *barMeter) stop() { _ = m.bar.Clear() }
