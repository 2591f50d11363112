package comm_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/dp/comm"
)

// Whatever comes, the reader takes no more than the limit, and what it accepts can be sent again.
func FuzzReadFrame(f *testing.F) {
	var hello bytes.Buffer
	if err := comm.WriteFrame(&hello, &comm.Message{Kind: "join", Call: 2, Facts: []comm.Fact{{Name: "seed", Value: "1"}}}); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{hello.String(), "", "\x00", "\x00\x00\x00\x02{}", "\x00\x00\x00\x05{}", "\xff\xff\xff\xff{}", "GET / HTTP/1.1\r\n\r\n",
		"\x00\x00\x00\x04null", "\x00\x00\x00\x12{\"Missing\":[1,2]}x"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		const limit = 64
		from := bytes.NewReader(text)
		m, err := comm.ReadFrame(from, limit)
		if read := len(text) - from.Len(); read > 4+limit {
			t.Fatalf("read %d bytes", read)
		}
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := comm.WriteFrame(&again, m); err != nil {
			t.Fatal(err)
		}
		back, err := comm.ReadFrame(&again, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, back); d != "" {
			t.Error(d)
		}
	})
}

func TestFrameTooLong(t *testing.T) {
	long := &comm.Message{Kind: "join", Text: string(make([]byte, 4<<20))} // every byte is six as JSON
	if err := comm.WriteFrame(io.Discard, long); err == nil {
		t.Error("a message that nobody would take was sent")
	}
}
