package comm

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// A frame is what processes of a session send each other: a length in four bytes, highest first, and a message as JSON.

const (
	// maxHello is how long a message may be of a process that has not said who it is.
	maxHello = 8 << 10
	// maxFrame is how long any other may be: the facts of a model of some hundred thousand parameters.
	maxFrame = 16 << 20
)

// The kinds of messages. Rank 0 talks with every other rank, and these with it only.
const (
	kindHello   = "hello"   // to 0: who I am
	kindRefuse  = "refuse"  // from 0: you have no place here
	kindWaiting = "waiting" // from 0: you are welcome, and these are missing
	kindReady   = "ready"   // from 0: all are here
	kindJoin    = "join"    // to 0: I want a group
	kindMemory  = "memory"  // from 0: here is its memory
	kindMapped  = "mapped"  // to 0: I have it
	kindStart   = "start"   // from 0: all have
	kindFail    = "fail"    // both: this call has failed
	kindLost    = "lost"    // from 0: a rank is gone
	kindGoodbye = "goodbye" // both: I leave
)

// message is one of them.
type message struct {
	Kind    string
	Call    int     `json:",omitempty"` // of NewGroup, counted; 0 is Connect
	Hello   *hello  `json:",omitempty"` // hello; in waiting and ready, rank 0's
	Text    string  `json:",omitempty"` // refuse
	Missing []int   `json:",omitempty"` // waiting
	Facts   []Fact  `json:",omitempty"` // join
	Path    string  `json:",omitempty"` // memory
	Nonce   []byte  `json:",omitempty"` // memory
	Why     *record `json:",omitempty"` // fail, lost
}

func writeFrame(w io.Writer, m *message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return &frameError{err}
	}
	if len(text) > maxFrame {
		return &frameError{fmt.Errorf("a message of %d bytes, where at most %d can be sent", len(text), maxFrame)}
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text)))
	_, err = w.Write(append(frame, text...))
	return err
}

// frameError is the error of something that is no frame.
type frameError struct{ why error }

func (e *frameError) Error() string { return "frame: " + e.why.Error() }
func (e *frameError) Unwrap() error { return e.why }

// readFrame reads a message of at most limit bytes. It takes no more memory than has come. The error is io.EOF if there is none.
func readFrame(r io.Reader, limit int) (*message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if uint64(n) > uint64(limit) {
		return nil, &frameError{fmt.Errorf("a message of %d bytes, where at most %d are taken", n, limit)}
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return nil, err
	}
	if len(text) < int(n) {
		return nil, io.ErrUnexpectedEOF
	}
	m := new(message)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, &frameError{err}
	}
	return m, nil
}
