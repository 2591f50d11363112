package comm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// record says to other processes why a group broke. It is JSON in the shared memory: nothing is written there that has to be fast.
type record struct {
	Rank int  // that broke it; -1 if it was not a single one
	All  bool // ranks that waited get the cause itself

	// One of these is the cause.
	Timeout      *TimeoutError      `json:",omitempty"`
	Mismatch     *MismatchError     `json:",omitempty"`
	Argument     *ArgumentError     `json:",omitempty"`
	Disagreement *DisagreementError `json:",omitempty"`
	Remote       *RemoteError       `json:",omitempty"`
}

// newRecord describes a cause of process rank from.
func newRecord(from, rank int, cause error, all bool) record {
	rec := record{Rank: rank, All: all}
	switch e := cause.(type) { //nolint:errorlint // what wraps one of them has more to say
	case *TimeoutError:
		rec.Timeout = e
	case *MismatchError:
		rec.Mismatch = e
	case *ArgumentError:
		rec.Argument = e
	case *DisagreementError:
		rec.Disagreement = e
	case *RemoteError:
		rec.Remote = e
	default:
		rec.Remote = newRemoteError(from, cause)
	}
	return rec
}

// errors are the cause of the break, and what ranks return that waited when it happened.
func (rec *record) errors() (cause *BrokenError, verdict error) {
	cause = &BrokenError{Rank: rec.Rank}
	switch {
	case rec.Timeout != nil:
		cause.Cause = rec.Timeout
	case rec.Mismatch != nil:
		cause.Cause = rec.Mismatch
	case rec.Argument != nil:
		cause.Cause = rec.Argument
	case rec.Disagreement != nil:
		cause.Cause = rec.Disagreement
	default:
		cause.Cause = rec.Remote
	}
	if rec.All {
		return cause, cause.Cause
	}
	return cause, cause
}

// encode writes the record where its rank's records go: a length and the text. A cause that is too long for that becomes text, cut.
func (rec record) encode(to []byte) {
	text, err := json.Marshal(rec)
	if err == nil && len(text) > len(to)-4 {
		cause, _ := rec.errors()
		short := &RemoteError{Rank: rec.Rank}
		if rec.Remote != nil {
			*short = *rec.Remote
		}
		whole := cause.Cause.Error()
		short.Text = strings.ToValidUTF8(whole[:min(len(whole), len(to)/8)], "") // JSON takes up to six times as much
		text, err = json.Marshal(record{Rank: rec.Rank, All: rec.All, Remote: short})
	}
	if err != nil {
		panic(fmt.Sprintf("comm: record of a cause: %v", err)) // it is made of numbers and strings
	}
	binary.NativeEndian.PutUint32(to, uint32(len(text)))
	copy(to[4:], text)
}

// decodeRecord reads what encode wrote.
func decodeRecord(from []byte) (*record, error) {
	if len(from) < 4 {
		return nil, errors.New("a record without a length")
	}
	n, text := binary.NativeEndian.Uint32(from), from[4:]
	if uint64(n) > uint64(len(text)) {
		return nil, fmt.Errorf("a record of %d bytes", n)
	}
	rec := new(record)
	if err := json.Unmarshal(text[:n], rec); err != nil {
		return nil, err
	}
	if rec.Timeout == nil && rec.Mismatch == nil && rec.Argument == nil && rec.Disagreement == nil && rec.Remote == nil {
		return nil, errors.New("a record without a cause")
	}
	return rec, nil
}

// kinds are the errors that stay what they are when they come from another process.
var kinds = map[string]error{"closed": ErrClosed, "canceled": context.Canceled, "deadline": context.DeadlineExceeded}

// newRemoteError is what other processes get of an error of this one, which is rank.
func newRemoteError(rank int, err error) *RemoteError {
	e := &RemoteError{Rank: rank, Text: err.Error()}
	for kind, target := range kinds {
		if errors.Is(err, target) {
			e.Kinds = append(e.Kinds, kind)
		}
	}
	return e
}
