// Package machine lists the physical cards of a machine and what an environment makes of them. It is for tools such as `tandem devices`:
// a program that computes asks package cudaops, which knows the visible cards only.
//
// [Inspect] lists the cards of TANDEM_SIM_CARDS where that is set, and else asks NVIDIA's management library (NVML), which comes with the
// driver. How cards are linked takes a program that was built with cgo. Without NVML the cards are those that CUDA's driver shows, and
// [Machine.NVML] says why there are no others. Which cards are visible is the driver's word, where it works. Asking all this makes no
// context on a card.
//
// [Machine.SeeUse] adds what processes that use Tandem tell of themselves, which may take as long again: their limits, and what they hold of
// simulated cards.
//
// [Libraries] says which of CUDA's libraries there are.
//
// NVML counts cards as on the bus. So does CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID; by default it puts the fastest first, which makes a
// difference where cards are of several kinds ([Machine.Ambiguous]). Parts of cards (MIG) are not listed.
//
// Inspect looks at the machine anew at every call, and may be called concurrently; the driver reads its variables once.
package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/dl"
	"github.com/tandem-train/tandem/cudaops/internal/nvml"
	"github.com/tandem-train/tandem/cudaops/internal/nvmlite"
)

// Unknown stands for a number that is not known.
const Unknown = nvml.Unknown

// Machine is the cards of a machine.
type Machine struct {
	Cards      []Card             // by physical number
	Visibility cudaops.Visibility // what CUDA_VISIBLE_DEVICES makes of them

	// Ambiguous says that numbers in CUDA_VISIBLE_DEVICES may stand for other cards than here, as cards are of several kinds and
	// CUDA_DEVICE_ORDER does not say that they are counted as on the bus.
	Ambiguous bool

	// NVML is why NVML told of no card: nil where it did, and where it was not asked, since cards are simulated.
	NVML error

	// CUDA is why programs can't use these cards: the driver is there and does not work, or a variable has no meaning.
	CUDA error
}

// Card is a physical card.
type Card struct {
	Physical   int // number in the machine, as nvidia-smi counts, or Unknown
	Logical    int // number in processes of this environment, -1 for a card that is not visible
	Properties cudaops.Properties
	Node       int    // of the machine's memory (NUMA) that is next to it, or Unknown
	Links      []Link // to other cards, as far as they are known

	MemoryUsed  int64 // bytes, by all processes, or Unknown
	Utilization int   // percent of time in which something ran, lately, or Unknown
	Processes   []cudaops.ProcessMemory
	Limits      map[int]int64 // bytes that processes may hold, by pid, of those with a limit that use Tandem; SeeUse finds them

	Problem error // what NVML failed to tell
}

// Primary is whether it is the primary card of processes of this environment.
func (c *Card) Primary() bool { return c.Logical == 0 }

// Link is the way from a card to another.
type Link struct {
	To   int    // physical number of the other
	Kind string // as nvidia-smi topo names it: NV4, PIX, PXB, PHB, NODE, SYS
}

// Inspect lists the cards of this machine. It fails for a variable without meaning ([*cudaops.VariableError]).
// That NVML is missing or fails is no error: see [Machine.NVML].
func Inspect() (Machine, error) { return inspect(listCards, "/sys") }

// inspect asks list for cards that are not simulated, and the tree at sys where they are.
func inspect(list func() ([]nvml.Card, error), sys string) (Machine, error) {
	var m Machine
	simulated, err := cudaops.SimulatedCards()
	if err != nil {
		return m, err
	}
	if len(simulated) > 0 {
		for i, p := range simulated {
			m.Cards = append(m.Cards, Card{Physical: i, Properties: p, Node: Unknown, MemoryUsed: Unknown, Utilization: Unknown})
		}
		m.resolve()
		return m, nil
	}
	var found []nvml.Card
	if found, m.NVML = list(); m.NVML == nil {
		for i, c := range found {
			m.Cards = append(m.Cards, fromNVML(i, c, sys))
			m.Ambiguous = m.Ambiguous || c.Name != found[0].Name
		}
	}
	m.Ambiguous = m.Ambiguous && os.Getenv("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
	m.resolve()
	m.CUDA = m.askDriver()
	return m, nil
}

// resolve reads CUDA_VISIBLE_DEVICES by its rules.
func (m *Machine) resolve() {
	uuids := make([]string, len(m.Cards))
	for i, c := range m.Cards {
		uuids[i] = c.Properties.UUID
	}
	value, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	m.Visibility = cudaops.ResolveVisible(uuids, value, set)
	for i := range m.Cards {
		m.Cards[i].Logical = slices.Index(m.Visibility.Cards, i)
	}
}

// askDriver puts what the driver shows in place of what the rules say, where there is a driver.
func (m *Machine) askDriver() error {
	visible, err := cudaops.AvailableDevices()
	if err != nil {
		return err
	}
	v, err := cudaops.VisibleDevices()
	if err != nil || v.Physical == 0 {
		return err
	}
	m.Visibility = v
	if len(m.Cards) == 0 {
		for _, d := range visible {
			p, err := cudaops.DeviceProperties(d.Logical)
			if err != nil {
				return err
			}
			m.Cards = append(m.Cards, Card{Physical: d.Physical, Logical: d.Logical, Properties: p, Node: Unknown, MemoryUsed: Unknown, Utilization: Unknown})
		}
		return nil
	}
	for i := range m.Cards {
		c := &m.Cards[i]
		c.Logical = slices.IndexFunc(visible, func(d cudaops.Device) bool { return d.UUID == c.Properties.UUID })
	}
	return nil
}

// listCards asks NVML, and all but the links where this program was built without cgo.
func listCards() ([]nvml.Card, error) {
	cards, err := nvml.Cards()
	if !errors.Is(err, nvml.ErrUnavailable) {
		return cards, err
	}
	api, lightErr := nvmlite.Load()
	var missing *dl.MissingError
	if errors.As(lightErr, &missing) {
		return nil, fmt.Errorf("%w: %w", nvml.ErrUnavailable, lightErr)
	}
	if lightErr != nil {
		return nil, lightErr
	}
	return lightCards(api)
}

// lightCards are the cards as NVML describes them without cgo.
func lightCards(api *nvmlite.API) ([]nvml.Card, error) {
	found, err := api.Cards()
	if err != nil {
		return nil, err
	}
	cards := make([]nvml.Card, len(found))
	for i, f := range found {
		cards[i] = lightCard(api, f)
	}
	return cards, nil
}

func lightCard(api *nvmlite.API, f nvmlite.Card) nvml.Card {
	c := nvml.Card{UUID: f.UUID}
	var problems []error
	told := func(err error) bool {
		if err != nil && !nvmlite.Unsupported(err) {
			problems = append(problems, err)
		}
		return err == nil
	}
	var err error
	c.Name, err = f.Name()
	told(err)
	c.Major, c.Minor, err = f.Capability()
	told(err)
	c.BusID, err = f.BusID()
	told(err)
	if c.Memory, c.MemoryUsed, err = f.Memory(); !told(err) {
		c.Memory, c.MemoryUsed = Unknown, Unknown
	}
	if c.Utilization, err = f.Utilization(); !told(err) {
		c.Utilization = Unknown
	}
	processes, err := f.Processes()
	told(err)
	for _, p := range processes {
		name, err := api.ProcessName(p.PID)
		told(err)
		c.Processes = append(c.Processes, nvml.Process{PID: p.PID, Name: name, Bytes: p.Bytes})
	}
	c.Problem = errors.Join(problems...)
	return c
}

func fromNVML(number int, c nvml.Card, sys string) Card {
	card := Card{
		Physical: number,
		Properties: cudaops.Properties{
			Name: c.Name, UUID: c.UUID, Major: c.Major, Minor: c.Minor, TotalMemory: c.Memory,
		},
		Node:        node(c.BusID, sys),
		MemoryUsed:  c.MemoryUsed,
		Utilization: c.Utilization,
		Problem:     c.Problem,
	}
	for _, l := range c.Links {
		card.Links = append(card.Links, Link(l))
	}
	for _, p := range c.Processes {
		card.Processes = append(card.Processes, cudaops.ProcessMemory(p))
	}
	return card
}

// node is the memory node next to what is at a place on the bus. Where the tree at sys does not have it, as in some containers, or says
// that the machine has but one kind of memory (-1), it is not known.
func node(busID, sys string) int {
	domain, rest, ok := strings.Cut(strings.ToLower(busID), ":")
	if !ok {
		return Unknown
	}
	if n, err := strconv.ParseUint(domain, 16, 32); err == nil {
		domain = fmt.Sprintf("%04x", n) // NVML writes eight digits, the kernel four
	}
	text, err := os.ReadFile(filepath.Join(sys, "bus/pci/devices", domain+":"+rest, "numa_node"))
	if err != nil {
		return Unknown
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < 0 {
		return Unknown
	}
	return n
}
