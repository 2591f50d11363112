//go:build linux

package launcher

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// lineChecker is a console that sees that every line is whole.
type lineChecker struct {
	t      *testing.T
	rest   []byte
	flood  int         // bytes of the line without end
	pieces int         // that it came in
	lines  map[int]int // by rank
}

func (c *lineChecker) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	for {
		line, rest, whole := bytes.Cut(c.rest, []byte("\n"))
		if !whole {
			break
		}
		c.line(string(line))
		c.rest = rest
	}
	if len(c.rest) > 0 {
		c.t.Errorf("a write ends in the middle of a line")
	}
	return len(p), nil
}

func (c *lineChecker) line(line string) {
	if text, ok := strings.CutPrefix(line, "[rank0]: "); ok {
		if first := c.pieces == 0; first == strings.HasPrefix(text, cutMark+" ") {
			c.t.Errorf("piece %d does not say whether it goes on from another", c.pieces)
		}
		c.pieces++
		c.flood += strings.Count(text, "y")
		return
	}
	var i, rank, from int
	if _, err := fmt.Sscanf(line, "[rank%d]: line %d of rank %d:", &from, &i, &rank); err != nil || from != rank || i != c.lines[rank] ||
		!strings.HasSuffix(line, ": "+strings.Repeat("x", i%100)) {
		c.t.Fatalf("%v: %q", err, line)
	}
	c.lines[rank]++
}

func TestLinesAreNotCut(t *testing.T) {
	const megabytes, lines = 100, 5000
	s := newShow(t, 3)
	c := &lineChecker{t: t, lines: map[int]int{}}
	s.cfg.Stdout = c
	p := s.start(t.Context())
	p[0].tell(fmt.Sprintf("flood %d", megabytes))
	for _, w := range p[1:] {
		w.tell(fmt.Sprintf("lines %d", lines))
	}
	for _, w := range p {
		if got := w.hear(); got != "done" {
			t.Error(got)
		}
		w.tell("exit 0")
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if c.flood != megabytes<<20 || c.pieces != megabytes<<20/maxLine {
		t.Errorf("%d bytes came in %d pieces", c.flood, c.pieces)
	}
	if c.lines[1] != lines || c.lines[2] != lines {
		t.Errorf("lines by rank: %v", c.lines)
	}
}

func TestOutputFiles(t *testing.T) {
	type want struct{ outFile, errFile, outConsole, errConsole bool }
	everything := want{true, true, true, true}
	consoleOnly := want{false, false, true, true}
	for name, tc := range map[string]struct {
		redirects, tee StreamsByRank
		filter         []int
		want           [2]want
	}{
		"a folder alone":   {want: [2]want{everything, everything}},
		"redirect":         {redirects: StreamsByRank{All: Both}, want: [2]want{{outFile: true, errFile: true}, {outFile: true, errFile: true}}},
		"redirect one":     {redirects: StreamsByRank{Ranks: map[int]Streams{1: Stdout}}, want: [2]want{consoleOnly, {outFile: true, errConsole: true}}},
		"tee":              {tee: StreamsByRank{Ranks: map[int]Streams{0: Both}}, want: [2]want{everything, consoleOnly}},
		"tee and redirect": {tee: StreamsByRank{All: Stdout}, redirects: StreamsByRank{All: Both}, want: [2]want{{true, true, true, false}, {true, true, true, false}}},
		"filter":           {tee: StreamsByRank{All: Both}, filter: []int{1}, want: [2]want{{outFile: true, errFile: true}, everything}},
		"filter all out":   {filter: []int{}, want: [2]want{{outFile: true, errFile: true}, {outFile: true, errFile: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShow(t, 2)
			s.cfg.LogDir = t.TempDir()
			s.cfg.Redirects, s.cfg.Tee, s.cfg.Filter = tc.redirects, tc.tee, tc.filter
			for _, p := range s.start(t.Context()) {
				p.do("print to stdout\x01\r\x02")
				p.do("complain to stderr")
				p.tell("exit 0")
			}
			if err := s.end(); err != nil {
				t.Error(err)
			}
			for rank, want := range tc.want {
				for _, stream := range []struct {
					name, text    string
					file, console bool
					printed       string
				}{
					{"stdout", "to stdout\x01\r\x02\n", want.outFile, want.outConsole, s.stdout.String()},
					{"stderr", "to stderr\n", want.errFile, want.errConsole, s.stderr.String()},
				} {
					text, err := os.ReadFile(filepath.Join(s.cfg.LogDir, s.cfg.RunID, "attempt_0", fmt.Sprint(rank), stream.name+".log"))
					if stream.file && string(text) != stream.text || stream.file != (err == nil) {
						t.Errorf("rank %d, file of %s: %q, %v", rank, stream.name, text, err)
					}
					line := fmt.Sprintf("[rank%d]: %s", rank, stream.text)
					if got := strings.Contains(stream.printed, line); got != stream.console {
						t.Errorf("rank %d, %s on the console: %q", rank, stream.name, stream.printed)
					}
				}
			}
		})
	}
}

// TestFilesAreComplete: every byte is there, whatever the console gets of it, and after a restart there is a folder more.
func TestFilesAreComplete(t *testing.T) {
	s := newShow(t, 1)
	s.cfg.LogDir = t.TempDir()
	s.cfg.MaxRestarts = 1
	s.cfg.Tee.All = Both
	s.cfg.Stdout = new(safeBuffer)
	p := s.start(t.Context())
	p[0].do("flood 2")
	p[0].do("print ")
	p[0].tell("exit 1")
	p = s.stage.next(1)
	p[0].do("complain the end")
	p[0].tell("exit 7")
	e := s.fails()
	dir := filepath.Join(s.cfg.LogDir, s.cfg.RunID)
	if text, err := os.ReadFile(filepath.Join(dir, "attempt_0", "0", "stdout.log")); err != nil || !bytes.Equal(text, append(bytes.Repeat([]byte("y"), 2<<20), '\n')) {
		t.Errorf("the file has %d bytes, %v", len(text), err)
	}
	if want := filepath.Join(dir, "attempt_1", "0", "stderr.log"); e.Root().LogFile != want {
		t.Errorf("log file %q, want %q", e.Root().LogFile, want)
	}
	// Another job of that name does not write over it.
	again := newShow(t, 1)
	again.cfg.LogDir, again.cfg.RunID = s.cfg.LogDir, s.cfg.RunID
	again.start(t.Context())[0].tell("exit 0")
	if err := again.end(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir+"_2", "attempt_0", "0", "stdout.log")); err != nil {
		t.Error(err)
	}
}

func TestLogFolderCannotBe(t *testing.T) {
	s := newShow(t, 1)
	s.cfg.LogDir = testBinary(t) // a file
	if err := Run(t.Context(), s.cfg); err == nil || !strings.Contains(err.Error(), "log folder") {
		t.Error(err)
	}
	if len(s.stage.come) > 0 {
		t.Error("a worker was started")
	}
}

// TestDiskIsFull: the file ends, and that is said once; the console has everything.
func TestDiskIsFull(t *testing.T) {
	var out, log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	s := &stream{to: &outlet{console: &console{logger: logger}, to: &out}, logger: logger}
	w, err := s.open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	go s.read()
	for range 3 {
		fmt.Fprintln(w, "a line")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	if got := out.String(); got != strings.Repeat("a line\n", 3) {
		t.Errorf("%q", got)
	}
	if got := strings.Count(log.String(), "incomplete"); got != 1 {
		t.Errorf("said %d times: %s", got, log.String())
	}
}

// brokenConsole is a file on a disk that is full.
type brokenConsole struct{}

func (brokenConsole) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestConsoleBreaks(t *testing.T) {
	s := newShow(t, 2)
	s.cfg.Stdout = brokenConsole{}
	for _, p := range s.start(t.Context()) {
		p.do("lines 5000")
		p.do("complain still here")
		p.tell("exit 0")
	}
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if got := strings.Count(s.stderr.String(), "still here\n"); got != 2 {
		t.Errorf("stderr: %q", s.stderr.String())
	}
	if got := strings.Count(s.log.String(), `can't be written, and is lost from here" stream=stdout error="no space left on device"`); got != 1 {
		t.Errorf("said %d times:\n%s", got, s.log.String())
	}
}

// blockedConsole is one that nobody reads.
type blockedConsole struct{ release chan struct{} }

func (c blockedConsole) Write([]byte) (int, error) {
	<-c.release
	return 0, os.ErrClosed
}

// TestConsoleBlocks: a job that is interrupted ends, though its output cannot.
func TestConsoleBlocks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newShow(t, 1)
	c := blockedConsole{make(chan struct{})}
	t.Cleanup(func() { close(c.release) })
	s.cfg.Stdout = c
	p := s.start(ctx)
	p[0].do("print nobody reads this")
	cancel()
	if err := s.end(); err == nil {
		t.Error("the job ended well")
	}
}
