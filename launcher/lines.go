package launcher

import (
	"bytes"
	"unicode/utf8"
)

// maxLine is how long a line may be, in bytes; longer ones go out in pieces, so that memory has a bound.
const maxLine = 64 << 10

// cutMark ends a piece of a line that goes on, and begins the one that goes on.
const cutMark = "[...]"

// piece is a line without its end, or a piece of a long one.
type piece struct {
	text []byte // until the next call only
	goes bool   // on in the next piece
	went bool   // on from the piece before
}

// appendTo appends the piece as it is printed.
func (p piece) appendTo(out []byte, prefix string) []byte {
	out = append(out, prefix...)
	if p.went {
		out = append(out, cutMark+" "...)
	}
	out = append(out, p.text...)
	if p.goes {
		out = append(out, " "+cutMark...)
	}
	return append(out, '\n')
}

// splitter makes lines of what comes in any chunks. Where long lines are cut depends on their text alone.
type splitter struct {
	rest []byte // of a line whose end has not come: no newline, at most maxLine
	went bool   // a piece of this line has gone out
}

// feed takes a chunk and gives the pieces that are complete.
func (s *splitter) feed(chunk []byte, emit func(piece)) {
	seen := len(s.rest)
	s.rest = append(s.rest, chunk...)
	left := s.rest
	for {
		window := left[:min(len(left), maxLine+1)]
		switch i := bytes.IndexByte(window[min(seen, len(window)):], '\n'); {
		case i >= 0:
			i += seen
			emit(piece{text: left[:i], went: s.went})
			left, s.went = left[i+1:], false
		case len(window) > maxLine:
			n := wholeRunes(window)
			emit(piece{text: left[:n], went: s.went, goes: true})
			left, s.went = left[n:], true
		default:
			s.rest = append(s.rest[:0], left...)
			return
		}
		seen = 0
	}
}

// end gives the last line, if no newline ended it.
func (s *splitter) end(emit func(piece)) {
	if len(s.rest) > 0 {
		emit(piece{text: s.rest, went: s.went})
	}
	s.rest, s.went = nil, false
}

// wholeRunes is how much of a window that is too long by one byte goes out: as much as can without cutting a character.
func wholeRunes(window []byte) int {
	for n := maxLine; n > maxLine-utf8.UTFMax; n-- {
		if utf8.RuneStart(window[n]) {
			return n
		}
	}
	return maxLine // it is no text
}
