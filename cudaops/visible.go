package cudaops

import (
	"fmt"
	"math"
	"strings"
)

// Visibility is what CUDA_VISIBLE_DEVICES makes of a machine's cards.
type Visibility struct {
	Value string // the variable's value
	Set   bool   // whether the variable is set at all; if not, all cards are visible

	Physical int   // number of cards in the machine
	Cards    []int // Cards[logical] is the physical number

	// Ignored is what of the value had no effect, in the order of the list.
	Ignored []IgnoredEntry

	// Repeated says that an entry chose a card that an earlier one had chosen,
	// which leaves no card at all.
	Repeated bool
}

// IgnoredEntry is an entry of CUDA_VISIBLE_DEVICES, or the end of one, that had
// no effect.
type IgnoredEntry struct {
	Entry  int    // position in the list, from 1
	Text   string // the text without effect
	Reason string
}

// ResolveVisible applies a CUDA_VISIBLE_DEVICES value to the physical cards with
// these UUIDs (GPU-... or MIG-..., in physical order) as CUDA's driver does; set
// tells an empty value from none. The rules, measured on driver 580.159:
//
//   - The first entry sets the kind: UUIDs if it begins with GPU- or MIG- (in
//     capitals, without a blank before), else numbers.
//   - A number is read as C's strtoul does (blanks, a sign, decimal digits, the
//     rest of the entry not read; negative numbers and those beyond 32 bits
//     wrap) and truncated to a 32-bit integer.
//   - A UUID is hexadecimal digits in either case, with dashes anywhere, and may
//     be shortened as long as one card alone begins so. After the 32nd digit the
//     rest of the entry is not read.
//   - An entry that names no card ends the list: cards before it are seen.
//   - A card named twice before that leaves no card.
func ResolveVisible(uuids []string, value string, set bool) Visibility {
	v := Visibility{Value: value, Set: set, Physical: len(uuids)}
	if !set {
		for i := range uuids {
			v.Cards = append(v.Cards, i)
		}
		return v
	}
	entries := strings.Split(value, ",")
	read := readOrdinalEntry
	if isUUID(entries[0]) {
		read = readUUIDEntry
	}
	chosenBy := map[int]int{} // physical card: its entry
	for i, text := range entries {
		card, rest, err := read(text, uuids)
		if err != nil {
			v.ignore(i, text, err.Error()+"; the list ends here")
			v.ignoreAll(i+1, entries[i+1:], fmt.Sprintf("the list ended at entry %d", i+1))
			return v
		}
		if first, dup := chosenBy[card]; dup {
			return v.repeated(entries, card, first, i)
		}
		if strings.Trim(rest, blanks) != "" {
			v.ignore(i, rest, fmt.Sprintf("the entry chose card %d before this; the rest of it is not read", card))
		}
		chosenBy[card] = i
		v.Cards = append(v.Cards, card)
	}
	return v
}

// repeated is the answer where entry second chose the card that entry first had
// chosen: no cards, for that reason.
func (v Visibility) repeated(entries []string, card, first, second int) Visibility {
	v.Cards, v.Ignored, v.Repeated = nil, nil, true
	lost := fmt.Sprintf("a repeated card (entry %d) leaves none", second+1)
	v.ignoreAll(0, entries[:second], lost)
	v.ignore(second, entries[second], fmt.Sprintf("it chooses card %d again, as entry %d did, and a repeated card leaves none", card, first+1))
	v.ignoreAll(second+1, entries[second+1:], lost)
	return v
}

func (v *Visibility) ignore(i int, text, reason string) {
	v.Ignored = append(v.Ignored, IgnoredEntry{Entry: i + 1, Text: text, Reason: reason})
}

func (v *Visibility) ignoreAll(from int, texts []string, reason string) {
	for i, text := range texts {
		v.ignore(from+i, text, reason)
	}
}

// String says in one line what the variable is and, where that is worth saying,
// what of it was ignored.
func (v Visibility) String() string {
	if !v.Set {
		return "CUDA_VISIBLE_DEVICES is not set"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CUDA_VISIBLE_DEVICES=%q", v.Value)
	for i, e := range v.Ignored {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%sentry %d: %q: %s", sep, e.Entry, e.Text, e.Reason)
	}
	return b.String()
}

// blanks are the characters that C's isspace knows.
const blanks = " \t\n\v\f\r"

// readOrdinalEntry reads an entry that is a card's number.
func readOrdinalEntry(text string, uuids []string) (card int, rest string, err error) {
	n, rest, ok := strtoul(text)
	switch {
	case strings.Trim(text, blanks) == "":
		return 0, "", fmt.Errorf("it is empty")
	case !ok && isUUID(text):
		return 0, "", fmt.Errorf("it is a UUID in a list that began with a number")
	case !ok:
		return 0, "", fmt.Errorf("it is not a card's number")
	}
	// The driver keeps 32 bits of the number.
	ordinal := int32(uint32(n))
	if ordinal < 0 || int(ordinal) >= len(uuids) {
		return 0, "", fmt.Errorf("there is no card %d (%s)", ordinal, cardRange(len(uuids)))
	}
	return int(ordinal), rest, nil
}

// cardRange says which numbers n cards have.
func cardRange(n int) string {
	switch n {
	case 0:
		return "there are none"
	case 1:
		return "there is card 0 only"
	}
	return fmt.Sprintf("there are 0 to %d", n-1)
}

// strtoul is C's function in base 10 with a 64-bit result: ok is whether there
// was a digit, and rest what follows the last.
func strtoul(s string) (n uint64, rest string, ok bool) {
	s = strings.TrimLeft(s, blanks)
	negative := strings.HasPrefix(s, "-")
	if negative || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	i, overflow := 0, false
	for ; i < len(s) && '0' <= s[i] && s[i] <= '9'; i++ {
		digit := uint64(s[i] - '0')
		overflow = overflow || n > (math.MaxUint64-digit)/10
		n = n*10 + digit
	}
	switch {
	case overflow:
		n = math.MaxUint64 // whatever the sign
	case negative:
		n = -n
	}
	return n, s[i:], i > 0
}

// uuidDigits is the number of hexadecimal digits in a UUID.
const uuidDigits = 32

// uuidPrefixes begin the UUIDs of whole cards and of parts of cards.
var uuidPrefixes = []string{"GPU-", "MIG-"}

func isUUID(text string) bool {
	_, ok := cutUUIDPrefix(text)
	return ok
}

func cutUUIDPrefix(text string) (string, bool) {
	for _, p := range uuidPrefixes {
		if rest, ok := strings.CutPrefix(text, p); ok {
			return rest, true
		}
	}
	return text, false
}

// readUUIDEntry reads an entry that is a card's UUID or the beginning of one.
func readUUIDEntry(text string, uuids []string) (card int, rest string, err error) {
	if !isUUID(text) {
		return 0, "", fmt.Errorf("it does not begin with GPU- or MIG-, in a list that began with a UUID")
	}
	digits, rest, ok := hexDigits(text)
	if !ok {
		return 0, "", fmt.Errorf("it is not a UUID: %q is no hexadecimal digit", rest[:1])
	}
	card, matches := 0, 0
	for i, uuid := range uuids {
		if whole, _, _ := hexDigits(uuid); strings.HasPrefix(whole, digits) {
			card, matches = i, matches+1
		}
	}
	switch matches {
	case 0:
		return 0, "", fmt.Errorf("no card has this UUID")
	case 1:
		return card, rest, nil
	}
	return 0, "", fmt.Errorf("%d cards have UUIDs that begin so", matches)
}

// hexDigits reads the digits of a UUID, in small letters: at most uuidDigits,
// with rest what follows them. Where another character comes before that, it is
// not ok and rest begins with that character.
func hexDigits(uuid string) (digits, rest string, ok bool) {
	s, _ := cutUUIDPrefix(uuid)
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case b.Len() == uuidDigits:
			return b.String(), s[i:], true
		case c == '-':
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f':
			b.WriteByte(c)
		case 'A' <= c && c <= 'F':
			b.WriteByte(c - 'A' + 'a')
		default:
			return b.String(), s[i:], false
		}
	}
	return b.String(), "", true
}
