package cudaops

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Limits and defaults of TANDEM_SIM_CARDS.
const (
	simDefaultMemory = 16 * gib
	simMinMemory     = mib
	simMaxMemory     = 1024 * gib
	simMaxCards      = 1024
)

// simDriver simulates cards: their memory is the host's, and work is done when
// the call that gave it returns.
//
// All simulated cards are equally fast, so CUDA's two orders of cards (fastest
// first, or as on the bus) are one and CUDA_DEVICE_ORDER makes no difference.
type simDriver struct {
	visible []*simCard
}

type simCard struct {
	info cardInfo
	mu   sync.Mutex
	used int64
}

// newSimDriver makes the cards of a TANDEM_SIM_CARDS value and lets a
// CUDA_VISIBLE_DEVICES setting choose among them.
func newSimDriver(spec string, visible setting) (*simDriver, Visibility, error) {
	all, err := simCards(spec)
	if err != nil {
		return nil, Visibility{}, err
	}
	uuids := make([]string, len(all))
	for i, p := range all {
		uuids[i] = p.UUID
	}
	v := ResolveVisible(uuids, visible.value, visible.set)
	d := new(simDriver)
	for _, physical := range v.Cards {
		d.visible = append(d.visible, &simCard{info: cardInfo{physical: physical, props: all[physical]}})
	}
	return d, v, nil
}

// SimulatedCards are the properties of the cards that TANDEM_SIM_CARDS makes, by
// physical number, visible or not. Without the variable there are none.
func SimulatedCards() ([]Properties, error) {
	spec := lookupSetting(simVariable)
	if spec.value == "" {
		return nil, nil
	}
	return simCards(spec.value)
}

// simCards are the cards of a TANDEM_SIM_CARDS value.
func simCards(spec string) ([]Properties, error) {
	sizes, err := parseSimCards(spec)
	if err != nil {
		return nil, err
	}
	all := make([]Properties, len(sizes))
	for i, size := range sizes {
		all[i] = Properties{
			Name:                "Tandem Simulated Card",
			UUID:                simUUID(i),
			TotalMemory:         size,
			MultiProcessorCount: 1,
			Simulated:           true,
		}
	}
	return all, nil
}

// simUUID is the UUID of simulated card i: made up, the same on every machine,
// and different from the first digits on.
func simUUID(i int) string {
	h := sha256.Sum256([]byte("tandem simulated card " + strconv.Itoa(i)))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// parseSimCards reads a TANDEM_SIM_CARDS value: a number of cards, or a list of
// SIZE or COUNTxSIZE. It gives each card's memory in bytes.
func parseSimCards(value string) ([]int64, error) {
	fail := func(reason string) ([]int64, error) {
		return nil, &VariableError{
			Variable: simVariable, Value: value, Reason: reason,
			Works: "4 (cards of " + formatSize(simDefaultMemory) + "), 4x2GiB or 2GiB,1GiB",
		}
	}
	if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
		if n < 1 || n > simMaxCards {
			return fail(fmt.Sprintf("%d cards: there can be 1 to %d", n, simMaxCards))
		}
		return slices.Repeat([]int64{simDefaultMemory}, n), nil
	}
	var sizes []int64
	for entry := range strings.SplitSeq(value, ",") {
		count, size := 1, entry
		if before, after, found := strings.Cut(strings.ToLower(entry), "x"); found {
			n, err := strconv.Atoi(strings.TrimSpace(before))
			if err != nil {
				return fail(fmt.Sprintf("%q is not a number of cards", before))
			}
			count, size = n, after
		}
		memory, err := parseSize(size)
		if err != nil {
			return fail(err.Error())
		}
		if memory < simMinMemory || memory > simMaxMemory {
			return fail(fmt.Sprintf("a card of %s: it can have %s to %s", formatSize(memory), formatSize(simMinMemory), formatSize(simMaxMemory)))
		}
		if count < 1 || len(sizes) > simMaxCards-count {
			return fail(fmt.Sprintf("%d more cards after %d: there can be 1 to %d", count, len(sizes), simMaxCards))
		}
		sizes = append(sizes, slices.Repeat([]int64{memory}, count)...)
	}
	return sizes, nil
}

func (d *simDriver) cards() []cardInfo {
	infos := make([]cardInfo, len(d.visible))
	for i, c := range d.visible {
		infos[i] = c.info
	}
	return infos
}

// granularity is as fine as blocks are, so that a simulated card or cap can be
// filled exactly. (Real cards give memory in steps of 2 MiB.)
func (d *simDriver) granularity() int64 { return blockUnit }

func (d *simDriver) malloc(card int, size int64) (region, error) {
	c := d.visible[card]
	c.mu.Lock()
	defer c.mu.Unlock()
	if size > c.info.props.TotalMemory-c.used {
		return nil, errCardFull
	}
	mem, err := hostMap(size)
	if err != nil {
		return nil, fmt.Errorf("the host has no memory for %s of simulated card %d: %w", formatSize(size), c.info.physical, err)
	}
	c.used += size
	return &simRegion{card: c, mem: mem, mark: markFor(SimulatedMark+c.info.props.UUID, size)}, nil
}

func (d *simDriver) memInfo(card int) (free, total int64, err error) {
	c := d.visible[card]
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info.props.TotalMemory - c.used, c.info.props.TotalMemory, nil
}

func (d *simDriver) overhead(int) (int64, error) { return 0, nil }

func (d *simDriver) spare() int64 { return 0 }

func (d *simDriver) noContext(int) bool { return false }

func (d *simDriver) others(int) []ProcessMemory { return nil }

func (d *simDriver) synchronize(int) error { return nil }

// simRegion is memory of a simulated card.
type simRegion struct {
	card *simCard
	mem  []byte
	mark []byte // see markFor; nil if there is none
}

func (r *simRegion) host() []byte { return r.mem }

func (r *simRegion) write(off int64, src []byte) error {
	copy(r.mem[off:], src)
	return nil
}

func (r *simRegion) read(dst []byte, off int64) error {
	copy(dst, r.mem[off:])
	return nil
}

// poison is what recycled memory is filled with, piece by piece: a float32 of 0xFF
// bytes is NaN.
var poison = bytes.Repeat([]byte{0xFF}, 4096)

// recycle makes use of old contents visible.
func (r *simRegion) recycle(off, n int64) {
	for b := r.mem[off : off+n]; len(b) > 0; {
		b = b[copy(b, poison):]
	}
}

func (r *simRegion) release() error {
	r.card.mu.Lock()
	defer r.card.mu.Unlock()
	if r.mem == nil {
		return errors.New("region released twice")
	}
	r.card.used -= int64(len(r.mem))
	err := errors.Join(hostUnmap(r.mem), unmark(r.mark))
	r.mem, r.mark = nil, nil
	return err
}
