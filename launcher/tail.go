package launcher

import (
	"bytes"
	"strings"
	"sync"
)

// What is kept of a worker's stderr for the report.
const (
	tailBytes = 8 << 10
	tailLines = 20
)

// tail keeps the end of a stream, and the last line that says why a Go program died, which may be far above the end.
type tail struct {
	mu    sync.Mutex // the reader may outlive the attempt when the console blocks
	bytes []byte     // up to twice tailBytes
	cut   bool       // something came before
	death string
}

func (t *tail) write(chunk []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(chunk) > tailBytes {
		chunk, t.bytes, t.cut = chunk[len(chunk)-tailBytes:], t.bytes[:0], true
	}
	t.bytes = append(t.bytes, chunk...)
	if over := len(t.bytes) - tailBytes; over > tailBytes {
		t.bytes, t.cut = append(t.bytes[:0], t.bytes[over:]...), true
	}
}

// line looks at a line of the stream.
func (t *tail) line(p piece) {
	if !p.went && (bytes.HasPrefix(p.text, []byte("panic: ")) || bytes.HasPrefix(p.text, []byte("fatal error: "))) {
		t.mu.Lock()
		t.death = string(p.text[:min(len(p.text), tailBytes)])
		t.mu.Unlock()
	}
}

// text is the last lines, whole ones, and the line that says why.
func (t *tail) text() (lines, death string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, cut := t.bytes, t.cut
	if over := len(b) - tailBytes; over > 0 {
		b, cut = b[over:], true
	}
	if i := bytes.IndexByte(b, '\n'); cut && i >= 0 && i < len(b)-1 {
		b = b[i+1:]
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-tailLines):], "\n"), t.death
}
