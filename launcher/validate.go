package launcher

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
)

// maxCPU is the number of processors that an affinity mask has room for.
const maxCPU = 1024

// Validate says what is wrong with c, as a [*ConfigError]: each field by itself, and against the others.
func (c *Config) Validate() error {
	wrong := func(field, format string, args ...any) error {
		return &ConfigError{Field: field, Why: fmt.Sprintf(format, args...)}
	}
	n := len(c.Workers)
	switch {
	case c.Program == "":
		return wrong("Program", "it is empty: name the file that workers run")
	case n == 0:
		return wrong("Workers", "there are none: a job needs at least one")
	case c.Nodes < 0:
		return wrong("Nodes", "%d: it must be at least 1", c.Nodes)
	case c.Node < 0 || c.Node >= max(1, c.Nodes):
		return wrong("Node", "%d: it must be from 0 to %d, as there are %d nodes", c.Node, max(1, c.Nodes)-1, max(1, c.Nodes))
	case c.Port < 0 || c.Port > 65535:
		return wrong("Port", "%d: it must be from 1 to 65535, or 0 for a free one", c.Port)
	case c.Nodes > 1 && c.Port == 0:
		return wrong("Port", "0: all %d nodes need to know the same port", c.Nodes)
	case c.Nodes > 1 && c.Addr == "":
		return wrong("Addr", "it is empty: all %d nodes need the address of node 0", c.Nodes)
	case c.Nodes > 1 && c.RunID == "":
		return wrong("RunID", "it is empty: all %d nodes need the same", c.Nodes)
	case strings.ContainsAny(c.RunID, "/\n\x00") || c.RunID == "." || c.RunID == "..":
		return wrong("RunID", "%q: it names a folder, so it must be neither a path nor have a newline", c.RunID)
	case strings.ContainsRune(c.Role, 0):
		return wrong("Role", "%q: it has a zero byte, which no variable can have", c.Role)
	case c.MaxRestarts < 0:
		return wrong("MaxRestarts", "%d: it must not be negative", c.MaxRestarts)
	case c.MaxRestarts > 0 && c.Nodes > 1:
		return wrong("MaxRestarts", "%d: launchers of several nodes cannot restart together: use 0, and let what started them start them again", c.MaxRestarts)
	case c.MonitorInterval < 0:
		return wrong("MonitorInterval", "%v: it must not be negative", c.MonitorInterval)
	case c.Grace < 0:
		return wrong("Grace", "%v: it must not be negative", c.Grace)
	}
	for i, w := range c.Workers {
		for _, v := range w.Env {
			if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
				return wrong("Workers", "local rank %d: Env %q: it must be NAME=VALUE", i, v)
			}
		}
		for _, cpu := range w.CPUs {
			if cpu < 0 || cpu >= maxCPU {
				return wrong("Workers", "local rank %d: CPUs: %d: it must be from 0 to %d", i, cpu, maxCPU-1)
			}
		}
	}
	for _, f := range []struct {
		name string
		by   StreamsByRank
	}{{"Redirects", c.Redirects}, {"Tee", c.Tee}} {
		if f.by.All < None || f.by.All > Both {
			return wrong(f.name, "%d: it must be from 0 to 3", f.by.All)
		}
		asked := f.by.All != None
		for rank, streams := range f.by.Ranks {
			if rank < 0 || rank >= n {
				return wrong(f.name, "local rank %d: it must be from 0 to %d", rank, n-1)
			}
			if streams < None || streams > Both {
				return wrong(f.name, "local rank %d: %d: it must be from 0 to 3", rank, streams)
			}
			asked = asked || streams != None
		}
		if asked && c.LogDir == "" {
			return wrong(f.name, "it needs a LogDir to write to")
		}
	}
	for _, rank := range c.Filter {
		if rank < 0 || rank >= n {
			return wrong("Filter", "local rank %d: it must be from 0 to %d", rank, n-1)
		}
	}
	return nil
}

// withDefaults fills in what was left empty.
func (c Config) withDefaults() Config {
	c.Nodes = max(1, c.Nodes)
	if c.Env == nil {
		c.Env = os.Environ()
	}
	if c.Addr == "" {
		c.Addr = "127.0.0.1"
	}
	if c.RunID == "" {
		c.RunID = randomHex(6)
	}
	if c.Role == "" {
		c.Role = "default"
	}
	if c.MonitorInterval == 0 {
		c.MonitorInterval = 100 * time.Millisecond
	}
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// streams says for a local rank which of its streams go to a file, and which to the console.
func (c *Config) streams(localRank int) (files, console Streams) {
	redirects, tee := c.Redirects.Of(localRank), c.Tee.Of(localRank)
	files, console = redirects|tee, Both&^redirects|tee
	if c.LogDir != "" && !c.Redirects.any() && !c.Tee.any() {
		files = Both
	}
	if c.Filter != nil && !slices.Contains(c.Filter, localRank) {
		console = None
	}
	return files, console
}

// any reports whether it is about any stream.
func (s StreamsByRank) any() bool {
	for _, v := range s.Ranks {
		if v != None {
			return true
		}
	}
	return s.All != None
}

// randomHex is n random bytes, as digits.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
