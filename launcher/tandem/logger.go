package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// lineHandler prints what the launcher has to say as a line for people, in the form of this command's other messages:
//
//	tandem: restarting all workers (restart 1, of 2)
type lineHandler struct {
	to    io.Writer
	attrs []slog.Attr
}

func newLogger(to io.Writer) *slog.Logger { return slog.New(&lineHandler{to: to}) }

func (h *lineHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

// Handle prints a record in one write, so that the lines of workers do not cut it.
func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	var details []string
	add := func(a slog.Attr) bool {
		if a.Key != "" {
			details = append(details, fmt.Sprintf("%s %v", a.Key, a.Value))
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	line := "tandem: " + r.Message
	if len(details) > 0 {
		line += " (" + strings.Join(details, ", ") + ")"
	}
	_, err := io.WriteString(h.to, line+"\n")
	return err
}

// WithAttrs is the handler with more details on each line.
func (h *lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &lineHandler{h.to, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

// WithGroup is the handler itself: lines for people have no groups.
func (h *lineHandler) WithGroup(string) slog.Handler { return h }
