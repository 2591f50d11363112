package cudaops

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrFreed is the error of using or freeing a [Memory] that was freed.
var ErrFreed = errors.New("memory was freed before")

// NoDeviceError is the error of using a card in a process that sees none.
type NoDeviceError struct {
	Visibility Visibility // Physical is 0 when the machine has no card either
}

func (e *NoDeviceError) Error() string {
	if n := e.Visibility.Physical; n > 0 {
		return fmt.Sprintf("cudaops: no visible card: the machine has %d, and %s; unset CUDA_VISIBLE_DEVICES or list card numbers, each once (%s)", n, e.Visibility, cardRange(n))
	}
	const simulate = "set TANDEM_SIM_CARDS (4 or 4x2GiB, for instance) to simulate some"
	if e.Visibility.Set {
		return fmt.Sprintf("cudaops: no card, with CUDA_VISIBLE_DEVICES=%q: %s", e.Visibility.Value, simulate)
	}
	return "cudaops: no card: " + simulate
}

// InvalidDeviceError is the error of naming a card that is not visible.
type InvalidDeviceError struct {
	ID         int
	Visible    []Device
	Visibility Visibility
}

func (e *InvalidDeviceError) Error() string {
	mapping := make([]string, len(e.Visible))
	for i, d := range e.Visible {
		mapping[i] = fmt.Sprintf("%s = physical card %d", String(d.Logical), d.Physical)
		if d.Physical == UnknownPhysical {
			mapping[i] = String(d.Logical) + " = " + d.UUID
		}
		if d.Primary {
			mapping[i] += ", primary"
		}
	}
	works := "use 0"
	if n := len(e.Visible); n > 1 {
		works = fmt.Sprintf("use 0 to %d", n-1)
	}
	physical := func(d Device) bool { return d.Physical == e.ID && e.ID >= 0 }
	if i := slices.IndexFunc(e.Visible, physical); i >= 0 {
		works = fmt.Sprintf("%s, logical numbers; physical card %d is %d here", works, e.ID, i)
	} else if slices.Contains(e.hidden(), e.ID) {
		works = fmt.Sprintf("%s, or make physical card %d visible in CUDA_VISIBLE_DEVICES", works, e.ID)
	}
	return fmt.Sprintf("Invalid device id %d: visible cards: %s (%s); %s", e.ID, strings.Join(mapping, "; "), e.Visibility, works)
}

// hidden are the physical cards that are not visible.
func (e *InvalidDeviceError) hidden() []int {
	var ids []int
	for i := range e.Visibility.Physical {
		if !slices.Contains(e.Visibility.Cards, i) {
			ids = append(ids, i)
		}
	}
	return ids
}

// InvalidFractionError is the error of a memory fraction outside 0..1.
type InvalidFractionError struct{ Fraction float64 }

func (e *InvalidFractionError) Error() string {
	return fmt.Sprintf("Invalid fraction value: %v. Allowed range: 0~1", e.Fraction)
}

// VariableError is the error of an environment variable whose value has no
// meaning.
type VariableError struct {
	Variable, Value string
	Reason          string
	Works           string // values that would work
}

func (e *VariableError) Error() string {
	return fmt.Sprintf("cudaops: %s=%q: %s; what works: %s", e.Variable, e.Value, e.Reason, e.Works)
}

// EnvironmentChangedError is the error of every call after a variable that was
// read at the first call has changed.
type EnvironmentChangedError struct {
	Variable       string
	Then, Now      string
	ThenSet, IsSet bool // whether the variable was set then, and is set now
}

func (e *EnvironmentChangedError) Error() string {
	describe := func(value string, set bool) string {
		if !set {
			return "unset"
		}
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("cudaops: %s was %s when this process first used its cards and is %s now, too late to have an effect: set it before the program starts, or put it back",
		e.Variable, describe(e.Then, e.ThenSet), describe(e.Now, e.IsSet))
}

// ProcessMemory is what a process holds of a card's memory.
type ProcessMemory struct {
	PID   int
	Name  string
	Bytes int64 // UnknownBytes where NVML does not tell
}

// UnknownBytes stands for memory whose amount is not known: what is free on a card, without
// a context and NVML, or what another process holds.
const UnknownBytes = -1

// OutOfMemoryError is the error of a request for card memory that neither the
// caps nor the card allow, after cached memory was given back. All sizes are
// bytes.
type OutOfMemoryError struct {
	Device    int
	Name      string // of the card
	Requested int64  // 0 for a context, whose size is not known

	Total, Free         int64 // of the card; Free may be UnknownBytes
	Limit               Limit // what this process may hold, and what says so
	Allocated           int64 // by this process, in use
	ReservedUnallocated int64 // by this process's allocator, free in segments with blocks in use
	Overhead            int64 // by this process beside the allocator: context and libraries
	NoContext           bool  // there is no room for this process's context, so that nothing would fit
	Others              []ProcessMemory

	// Largest is the size of the largest request that would succeed now.
	Largest int64
}

func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	tried := "allocate " + formatSize(e.Requested)
	if e.Requested == 0 {
		tried = "make a context"
	}
	free := formatSize(e.Free) + " are"
	if e.Free == UnknownBytes {
		free = "an unknown part is"
	}
	fmt.Fprintf(&b, "cudaops: CUDA out of memory on %s (%s): tried to %s. The card has %s, of which %s free; this process may hold %s. It holds %s allocated and %s reserved but unallocated",
		String(e.Device), e.Name, tried, formatSize(e.Total), free, e.Limit, formatSize(e.Allocated), formatSize(e.ReservedUnallocated))
	if e.Overhead > 0 {
		fmt.Fprintf(&b, ", and %s in context and libraries", formatSize(e.Overhead))
	}
	if e.NoContext {
		b.WriteString("; nothing would fit, since there is no room for its context.")
	} else {
		fmt.Fprintf(&b, "; %s more would fit.", formatSize(e.Largest))
	}
	for i, p := range e.Others {
		sep := ","
		if i == 0 {
			sep = " Other processes on the card:"
		}
		fmt.Fprintf(&b, "%s %s (pid %d)", sep, p.Name, p.PID)
		if p.Bytes != UnknownBytes {
			b.WriteString(" with " + formatSize(p.Bytes))
		}
		if i == len(e.Others)-1 {
			b.WriteByte('.')
		}
	}
	b.WriteString(" Try " + e.advice() + ".")
	return b.String()
}

// advice is what the user can do: a larger cap is one only where there is a cap.
func (e *OutOfMemoryError) advice() string {
	if e.NoContext {
		return "another card, or ending other processes on this one"
	}
	try := []string{"a smaller batch", "a lower precision"}
	switch e.Limit.Source {
	case LimitByCard:
		try = append(try, "more cards")
	default:
		try = append(try, "a larger cap ("+e.Limit.Source.String()+")")
	}
	if len(e.Others) > 0 {
		try = append(try, "ending another process on the card")
	}
	return strings.Join(try[:len(try)-1], ", ") + " or " + try[len(try)-1]
}
