package cudaops

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// LimitSource names what sets a card's memory limit.
type LimitSource int

// What sets a limit.
const (
	LimitByCard     LimitSource = iota // the card's total memory: no cap is smaller
	LimitByFraction                    // SetPerProcessMemoryFraction
	LimitByBytes                       // SetDeviceMemoryLimit
	LimitByVariable                    // CUDA_DEVICE_LIMIT
)

func (s LimitSource) String() string {
	switch s {
	case LimitByCard:
		return "the card's memory"
	case LimitByFraction:
		return "SetPerProcessMemoryFraction"
	case LimitByBytes:
		return "SetDeviceMemoryLimit"
	case LimitByVariable:
		return limitVariable
	}
	return fmt.Sprintf("LimitSource(%d)", int(s))
}

// Limit is how much of a card's memory this process may hold.
type Limit struct {
	Bytes   int64
	Source  LimitSource
	Setting string // what the source was set to, such as 0.25 or 50%; empty for LimitByCard
}

// String is, for instance, 1.00 GiB by CUDA_DEVICE_LIMIT (50%).
func (l Limit) String() string {
	if l.Setting == "" {
		return formatSize(l.Bytes) + " by " + l.Source.String()
	}
	return fmt.Sprintf("%s by %s (%s)", formatSize(l.Bytes), l.Source, l.Setting)
}

// caps are the caps set on one card; nil pointers are caps that are not set.
type caps struct {
	fraction *float64
	bytes    *int64
	variable *amount
}

// all are the card's memory and the caps on it, the smallest first. Of equal ones
// the card counts first, then fraction, bytes and variable.
func (c caps) all(total int64) []Limit {
	all := []Limit{{Bytes: total, Source: LimitByCard}}
	if c.fraction != nil {
		all = append(all, Limit{fractionOf(*c.fraction, total), LimitByFraction, strconv.FormatFloat(*c.fraction, 'g', -1, 64)})
	}
	if c.bytes != nil {
		all = append(all, Limit{*c.bytes, LimitByBytes, strconv.FormatInt(*c.bytes, 10) + " bytes"})
	}
	if c.variable != nil {
		all = append(all, Limit{c.variable.of(total), LimitByVariable, c.variable.text})
	}
	slices.SortStableFunc(all, func(a, b Limit) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return all
}

// limit is the smallest of all.
func (c caps) limit(total int64) Limit { return c.all(total)[0] }

// fractionOf is fraction (0..1) of total, rounded down to whole bytes.
func fractionOf(fraction float64, total int64) int64 {
	return int64(fraction * float64(total))
}

// LimitOrigin stands in CUDA_DEVICE_LIMIT between an amount and who asked for it,
// where that was not the user: 4GiB from --memory-fraction 0.25.
const LimitOrigin = " from "

// amount is a share of a card or a number of bytes, as CUDA_DEVICE_LIMIT says it.
type amount struct {
	text     string
	relative bool
	fraction float64 // if relative
	bytes    int64   // if not
}

func (a amount) of(total int64) int64 {
	if a.relative {
		return fractionOf(a.fraction, total)
	}
	return a.bytes
}

func parseAmount(text string) (amount, error) {
	text = strings.TrimSpace(text)
	s, _, _ := strings.Cut(text, LimitOrigin)
	number, relative := strings.CutSuffix(s, "%")
	if !relative {
		bytes, err := parseSize(s)
		return amount{text: text, bytes: bytes}, err
	}
	percent, err := parseDecimal(strings.TrimSpace(number))
	if err != nil {
		return amount{}, err
	}
	if percent > 100 {
		return amount{}, fmt.Errorf("%q is more than 100%%", s)
	}
	return amount{text: text, relative: true, fraction: percent / 100}, nil
}

// parseDeviceLimit reads a CUDA_DEVICE_LIMIT value for so many visible cards: one
// amount for all, or a list of CARD:AMOUNT. It gives each card's amount, nil for
// a card without one. An entry for a card that is not visible is an error, since
// a cap that does not hold where it was meant to is worse than none; in a process
// without cards there is nothing to cap.
func parseDeviceLimit(value string, cards int) ([]*amount, error) {
	fail := func(reason string) ([]*amount, error) {
		return nil, &VariableError{
			Variable: limitVariable, Value: value, Reason: reason,
			Works: "8GiB, 50% or, by logical card, 0:8GiB,1:50%",
		}
	}
	amounts := make([]*amount, cards)
	if !strings.ContainsAny(value, ":,") {
		a, err := parseAmount(value)
		if err != nil {
			return fail(err.Error())
		}
		for i := range amounts {
			amounts[i] = &a
		}
		return amounts, nil
	}
	seen := map[int]bool{}
	for entry := range strings.SplitSeq(value, ",") {
		number, text, found := strings.Cut(entry, ":")
		if !found {
			return fail(fmt.Sprintf("%q does not say for which card", entry))
		}
		card, err := strconv.ParseUint(strings.TrimSpace(number), 10, 31)
		if err != nil {
			return fail(fmt.Sprintf("%q is not a card's number", number))
		}
		a, err := parseAmount(text)
		if err != nil {
			return fail(err.Error())
		}
		if i := int(card); seen[i] {
			return fail(fmt.Sprintf("card %d is there twice", i))
		} else if i < cards {
			amounts[i] = &a
		} else if cards > 0 {
			return fail(fmt.Sprintf("card %d is not visible (%s)", i, cardRange(cards)))
		}
		seen[int(card)] = true
	}
	return amounts, nil
}

// SetPerProcessMemoryFraction caps what this process may hold of the cards'
// memory to a fraction, 0 to 1, of each card's total. With no device named it
// caps every visible card. It replaces an earlier fraction; other caps stay, and
// the smallest holds. A fraction outside 0..1, or NaN, is an
// [*InvalidFractionError]; then, and where a card is not visible, no cap has changed.
//
// Lowering a cap gives cached memory back, but frees nothing that is in use:
// requests for more than is held already fail until enough has been freed. A fraction of 1 lifts it.
func SetPerProcessMemoryFraction(fraction float64, devices ...int) error {
	if math.IsNaN(fraction) || fraction < 0 || fraction > 1 {
		return &InvalidFractionError{Fraction: fraction}
	}
	return setCaps(devices, func(c *caps) { c.fraction = &fraction })
}

// SetDeviceMemoryLimit caps what this process may hold of the cards' memory to
// bytes on each. With no device named it caps every visible card. It replaces an
// earlier limit in bytes; other caps stay, and the smallest holds. Where a card
// is not visible no cap has changed.
//
// Lowering a cap gives cached memory back, but frees nothing that is in use:
// requests for more than is held already fail until enough has been freed. A limit of at least the card's memory lifts it.
func SetDeviceMemoryLimit(bytes int64, devices ...int) error {
	if bytes < 0 {
		return fmt.Errorf("cudaops: set memory limit: %d bytes: must be 0 or more", bytes)
	}
	return setCaps(devices, func(c *caps) { c.bytes = &bytes })
}

func setCaps(devices []int, set func(*caps)) error {
	s, err := use()
	if err != nil {
		return err
	}
	chosen, err := s.choose(devices)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range chosen {
		errs = append(errs, c.mem.setCaps(set))
	}
	return errors.Join(errs...)
}

// told are the marks of this process's limits, by card. See [LimitMark].
var told struct {
	sync.Mutex
	marks map[string][]byte
}

// tellLimit lets other processes see the limit on a card, by its UUID, if it is less than the card.
func tellLimit(uuid string, l Limit) error {
	told.Lock()
	defer told.Unlock()
	if err := unmark(told.marks[uuid]); err != nil {
		return fmt.Errorf("cudaops: tell the memory limit of card %s: %w", uuid, err)
	}
	delete(told.marks, uuid)
	if l.Source == LimitByCard {
		return nil
	}
	if told.marks == nil {
		told.marks = map[string][]byte{}
	}
	told.marks[uuid] = markFor(fmt.Sprintf("%s%s-%d", LimitMark, uuid, l.Bytes), 1)
	return nil
}

// MemoryLimit is how many bytes of the card's memory this process may hold, and
// what says so: the smallest of [MemoryLimits].
func MemoryLimit(device int) (Limit, error) {
	c, err := lookup(device)
	if err != nil {
		return Limit{}, err
	}
	return c.mem.limit(), nil
}

// MemoryLimits are all limits on what this process may hold of the card's memory:
// the card itself and the caps that are set. The first, which is the smallest, is
// the one that holds.
func MemoryLimits(device int) ([]Limit, error) {
	c, err := lookup(device)
	if err != nil {
		return nil, err
	}
	return c.mem.limits(), nil
}
