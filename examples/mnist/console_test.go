package main

import (
	"os"
	"strings"
	"testing"
)

func TestMeters(t *testing.T) {
	for _, c := range []struct {
		name  string
		kind  meterKind
		want  []string
		lines int
	}{
		{"lines", lineMeters, []string{"epoch 1/3  step 2/20  loss 0.5000", "step 20/20", "images/s"}, 10},
		{"bar", barMeters, []string{"epoch 1/3  loss 0.5000", "images/"}, 0},
		{"none", noMeter, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var notes strings.Builder
			m := (&console{notes: &notes, meters: c.kind}).meter("epoch 1/3", 20, 1280)
			for range 20 {
				m.step(64, 0.5)
			}
			m.stop()
			for _, want := range c.want {
				if !strings.Contains(notes.String(), want) {
					t.Errorf("no %q in %q", want, &notes)
				}
			}
			if c.want == nil && notes.Len() > 0 || strings.Count(notes.String(), "\n") != c.lines {
				t.Errorf("printed %q, want %d lines", &notes, c.lines)
			}
		})
	}
}

func TestConsole(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/notes") // a file, but no terminal
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		opts options
		want meterKind
	}{{options{}, lineMeters}, {options{noProgress: true}, noMeter}, {options{quiet: true}, noMeter}} {
		var out strings.Builder
		got := newConsole(&out, file, &c.opts)
		if got.meters != c.want {
			t.Errorf("%+v: meters %v, want %v", c.opts, got.meters, c.want)
		}
		if got.resultf("x"); (out.Len() == 0) != c.opts.quiet {
			t.Errorf("%+v: results print %q", c.opts, &out)
		}
	}
}
