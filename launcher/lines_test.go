package launcher

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// split gives what is printed of a text that comes in chunks: cuts has their lengths, one after the other.
func split(text []byte, cuts []byte) string {
	var s splitter
	var out []byte
	emit := func(p piece) { out = p.appendTo(out, "> ") }
	for len(text) > 0 {
		n := len(text)
		if len(cuts) > 0 {
			n, cuts = min(n, int(cuts[0])*997), cuts[1:]
		}
		s.feed(text[:n], emit)
		text = text[n:]
	}
	s.end(emit)
	return string(out)
}

func TestSplit(t *testing.T) {
	long := strings.Repeat("a", maxLine)
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":            {"", ""},
		"lines":              {"one\ntwo\n", "> one\n> two\n"},
		"no newline":         {"one\ntwo", "> one\n> two\n"},
		"empty lines":        {"\n\n", "> \n> \n"},
		"carriage returns":   {"10%\r20%\n", "> 10%\r20%\n"},
		"just long enough":   {long + "\nb", "> " + long + "\n> b\n"},
		"one more":           {long + "b\nc", "> " + long + " [...]\n> [...] b\n> c\n"},
		"three pieces":       {long + long + "b", "> " + long + " [...]\n> [...] " + long + " [...]\n> [...] b\n"},
		"a character is cut": {long[1:] + "é\n", "> " + long[1:] + " [...]\n> [...] é\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := split([]byte(tc.text), nil); got != tc.want {
				t.Errorf("%.100q, want %.100q", got, tc.want)
			}
		})
	}
}

// FuzzSplit: however a text is cut into chunks, the lines are the same, and nothing is lost of it.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("one\ntwo\n\nthree"), uint16(1), []byte{0, 1})
	f.Add([]byte("ab"), uint16(40000), []byte{3, 60, 1, 1, 70, 255})
	f.Add([]byte("é"), uint16(65000), []byte{66, 65, 1})
	f.Add([]byte("\x80"), uint16(65535), []byte{66, 255, 1})
	f.Add([]byte("a long line\n"), uint16(20000), []byte{9, 9, 9, 200, 1})
	f.Fuzz(func(t *testing.T, text []byte, times uint16, cuts []byte) {
		text = bytes.Repeat(text, 1+int(times))
		text = text[:min(len(text), 5*maxLine)]
		want := split(text, nil)
		if got := split(text, cuts); got != want {
			t.Fatalf("cut at %v: %d bytes, want %d", cuts, len(got), len(want))
		}
		var s splitter
		var back []byte
		s.feed(text, func(p piece) {
			if len(p.text) > maxLine || p.goes && utf8.Valid(text) && !utf8.Valid(p.text) {
				t.Fatalf("a piece of %d bytes, or a cut character", len(p.text))
			}
			if back = append(back, p.text...); !p.goes {
				back = append(back, '\n')
			}
		})
		s.end(func(p piece) { back = append(back, p.text...) })
		if !bytes.Equal(back, text) {
			t.Fatalf("%d bytes came back of %d", len(back), len(text))
		}
	})
}

func TestTail(t *testing.T) {
	write := func(chunks ...string) *tail {
		tl := new(tail)
		var s splitter
		for _, c := range chunks {
			tl.write([]byte(c))
			s.feed([]byte(c), tl.line)
		}
		s.end(tl.line)
		return tl
	}
	many := strings.Repeat("a line of text\n", 5000)
	for name, tc := range map[string]struct {
		chunks      []string
		lines       int
		last, death string
	}{
		"nothing":           {nil, 1, "", ""},
		"short":             {[]string{"one\ntw", "o\n"}, 2, "two", ""},
		"too many lines":    {[]string{many, "end"}, tailLines, "end", ""},
		"small chunks":      {strings.SplitAfter(many+"end\n", "\n"), tailLines, "end", ""},
		"one long line":     {[]string{strings.Repeat("x", 3*tailBytes)}, 1, strings.Repeat("x", tailBytes), ""},
		"a panic far above": {[]string{"panic: at the disco\n", many}, tailLines, "a line of text", "panic: at the disco"},
		"a fatal error":     {[]string{"fatal ", "error: all goroutines are asleep"}, 1, "fatal error: all goroutines are asleep", "fatal error: all goroutines are asleep"},
		"no panic":          {[]string{"no panic: we go on\n"}, 1, "no panic: we go on", ""},
	} {
		t.Run(name, func(t *testing.T) {
			text, death := write(tc.chunks...).text()
			lines := strings.Split(text, "\n")
			if len(lines) != tc.lines || lines[len(lines)-1] != tc.last || death != tc.death {
				t.Errorf("%d lines, the last %.80q, death %q", len(lines), lines[len(lines)-1], death)
			}
		})
	}
}

// BenchmarkSplit is what lines cost on their way to the console.
func BenchmarkSplit(b *testing.B) {
	chunk := bytes.Repeat([]byte("a line of sixty four bytes, as workers often print them to us.\n"), 1024)
	var s splitter
	var out []byte
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		out = out[:0]
		s.feed(chunk, func(p piece) { out = p.appendTo(out, "[rank0]: ") })
	}
}
