package cudaops

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/dl"
	"github.com/tandem-train/tandem/cudaops/internal/nvmlite"
)

// realDriver is CUDA's driver. A card costs nothing before its first use: only
// then is its context made.
type realDriver struct {
	visible []*realCard
}

type realCard struct {
	api     *cuda.API
	ordinal int
	info    cardInfo
	held    atomic.Int64 // bytes in regions

	mu       sync.Mutex
	card     *cuda.Card // nil before first use
	transfer *transfer
	guessed  int64 // see guess
}

// realCards are the cards that the driver shows, and what it made of
// CUDA_VISIBLE_DEVICES. It reads that only once, so there is one answer for the
// life of the process. The driver is nil where there is none or no card.
var realCards = sync.OnceValues(func() (found realCardsFound, err error) {
	visible := lookupSetting(visibleVariable)
	api, err := cuda.Load()
	var missing *dl.MissingError
	var failed *cuda.Error
	switch {
	case errors.As(err, &missing):
		return found, nil
	case errors.As(err, &failed) && (failed.Code == cuda.NoDevice || failed.Code == cuda.InvalidDevice):
		found.read = &visible
		found.visible = visibilityOf(nil, machineUUIDs(visible, nil), visible)
		found.visible.Repeated = failed.Code == cuda.InvalidDevice
		return found, nil
	case err != nil:
		return found, fmt.Errorf("cudaops: CUDA's driver is there, but does not work: %w", err)
	}
	d, err := newRealDriver(api)
	if err != nil {
		return found, fmt.Errorf("cudaops: list the cards: %w", err)
	}
	uuids := machineUUIDs(visible, d.visible)
	found.read = &visible
	found.visible = visibilityOf(d.visible, uuids, visible)
	for i, c := range d.visible {
		c.info.physical = found.visible.Cards[i]
	}
	found.driver = d
	return found, nil
})

type realCardsFound struct {
	driver  *realDriver
	read    *setting // CUDA_VISIBLE_DEVICES as the driver has read it; nil where there is no driver
	visible Visibility
}

func newRealDriver(api *cuda.API) (*realDriver, error) {
	n, err := api.DeviceCount()
	if err != nil {
		return nil, err
	}
	d := new(realDriver)
	for i := range n {
		p, err := realProperties(api, i)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", String(i), err)
		}
		d.visible = append(d.visible, &realCard{api: api, ordinal: i, info: cardInfo{props: p}})
	}
	return d, nil
}

func realProperties(api *cuda.API, ordinal int) (p Properties, err error) {
	dev, err := api.DeviceGet(ordinal)
	if err != nil {
		return p, err
	}
	if p.Name, err = api.DeviceName(dev); err != nil {
		return p, err
	}
	if p.UUID, err = api.DeviceUUID(dev); err != nil {
		return p, err
	}
	if strings.Contains(p.Name, " MIG ") { // a part of a card
		p.UUID = "MIG-" + strings.TrimPrefix(p.UUID, "GPU-")
	}
	if p.TotalMemory, err = api.DeviceTotalMem(dev); err != nil {
		return p, err
	}
	for _, a := range []struct {
		attribute int32
		value     *int
	}{
		{cuda.ComputeCapabilityMajor, &p.Major},
		{cuda.ComputeCapabilityMinor, &p.Minor},
		{cuda.MultiprocessorCount, &p.MultiProcessorCount},
	} {
		if *a.value, err = api.DeviceAttribute(a.attribute, dev); err != nil {
			return p, err
		}
	}
	return p, nil
}

// machineUUIDs are the UUIDs of all cards of the machine by physical number, or
// nil where that is not known. NVML, which knows, takes a while to start, so it is
// asked only where there is something to ask: without CUDA_VISIBLE_DEVICES, one
// card is card 0, and cards counted as on the bus have the numbers that they have.
func machineUUIDs(visible setting, seen []*realCard) []string {
	if !visible.set && (len(seen) < 2 || os.Getenv("CUDA_DEVICE_ORDER") == "PCI_BUS_ID") {
		return uuidsOf(seen)
	}
	cards, err := machineCards()
	if err != nil && !visible.set {
		return uuidsOf(seen)
	}
	var uuids []string
	for _, c := range cards {
		uuids = append(uuids, c.UUID)
	}
	return uuids
}

func uuidsOf(cards []*realCard) []string {
	uuids := make([]string, len(cards))
	for i, c := range cards {
		uuids[i] = c.info.props.UUID
	}
	return uuids
}

// machineCards are the cards of the machine as NVML has them.
var machineCards = sync.OnceValues(func() ([]nvmlite.Card, error) {
	api, err := nvmlite.Load()
	if err != nil {
		return nil, err
	}
	return api.Cards()
})

// visibilityOf says which of a machine's cards the driver shows. What it shows
// counts; [ResolveVisible] has the reasons, as long as they explain that.
func visibilityOf(seen []*realCard, uuids []string, visible setting) Visibility {
	v := ResolveVisible(uuids, visible.value, visible.set)
	if len(v.Cards) != len(seen) {
		v.Ignored = nil
	}
	v.Physical = max(v.Physical, len(seen))
	v.Cards, v.Repeated = nil, false
	number := map[string]int{}
	for i, uuid := range uuids {
		number[uuid] = i
	}
	for _, c := range seen {
		i, known := number[c.info.props.UUID]
		if !known || strings.HasPrefix(c.info.props.UUID, "MIG-") { // a part has no number
			i = UnknownPhysical
		}
		v.Cards = append(v.Cards, i)
	}
	return v
}

func (d *realDriver) cards() []cardInfo {
	infos := make([]cardInfo, len(d.visible))
	for i, c := range d.visible {
		infos[i] = c.info
	}
	return infos
}

// granularity is the size of the card's pages.
func (d *realDriver) granularity() int64 { return 2 * mib }

// open makes the card's context and stream at the first call.
func (c *realCard) open() (*cuda.Card, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.card != nil {
		return c.card, nil
	}
	card, err := c.api.OpenCard(c.ordinal)
	if err != nil {
		return nil, fmt.Errorf("make a context: %w", err)
	}
	c.card, c.transfer = card, newTransfer(card)
	return card, nil
}

// used is the card if it was opened, else nil.
func (c *realCard) used() *cuda.Card {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.card
}

// isFull is whether a call failed since the card has no room.
func isFull(err error) bool {
	var e *cuda.Error
	return errors.As(err, &e) && e.Code == cuda.OutOfMemory
}

func (d *realDriver) malloc(i int, bytes int64) (region, error) {
	c := d.visible[i]
	card, err := c.open()
	r := &realRegion{owner: c, bytes: bytes}
	if err == nil {
		err = card.Do(func() (err error) {
			r.addr, err = card.API.MemAlloc(bytes)
			return err
		})
	}
	if isFull(err) {
		return nil, fmt.Errorf("%w: %w", errCardFull, err)
	}
	if err != nil {
		return nil, err
	}
	c.held.Add(bytes)
	return r, nil
}

func (d *realDriver) memInfo(i int) (free, total int64, err error) {
	c := d.visible[i]
	card, err := c.open()
	if isFull(err) {
		return c.memInfoByNVML()
	}
	if err != nil {
		return 0, 0, err
	}
	err = card.Do(func() (err error) {
		free, total, err = card.MemGetInfo()
		return err
	})
	return free, total, err
}

// memInfoByNVML is memInfo where the card has no room for a context.
func (c *realCard) memInfoByNVML() (free, total int64, err error) {
	n, err := c.nvml()
	if err != nil {
		return 0, 0, err
	}
	total, used, err := n.Memory()
	return total - used, total, err
}

// nvml is the card as NVML knows it.
func (c *realCard) nvml() (nvmlite.Card, error) {
	cards, err := machineCards()
	if err != nil {
		return nvmlite.Card{}, err
	}
	for _, n := range cards {
		if n.UUID == c.info.props.UUID {
			return n, nil
		}
	}
	return nvmlite.Card{}, fmt.Errorf("NVML knows no card %s", c.info.props.UUID)
}

// overhead is what NVML says that the process holds, less what is in regions. The
// context is made before, for it counts. Where NVML does not tell, it is 0.
func (d *realDriver) overhead(i int) (int64, error) {
	c := d.visible[i]
	if _, err := c.open(); isFull(err) {
		return 0, nil // nothing of ours is there
	} else if err != nil {
		return 0, err
	}
	held := c.held.Load()
	own, _ := c.processes(held)
	if own == nil || own.Bytes == nvmlite.Unknown {
		return 0, nil
	}
	over := max(0, own.Bytes-held)
	if own.PID != os.Getpid() {
		over = c.guess(over)
	}
	return over, nil
}

// spare is for kernels and graphs, which the driver gives memory by itself, some
// pages a program. A program of a convolutional network was seen to take 10 MiB.
func (d *realDriver) spare() int64 { return 32 * mib }

func (d *realDriver) noContext(i int) bool {
	_, err := d.visible[i].open()
	return isFull(err)
}

// guess keeps the largest overhead that was seen, for a process that is not
// surely ours: the first look, when a context is all that we hold, is the best.
func (c *realCard) guess(over int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guessed = max(c.guessed, over)
	return c.guessed
}

// processes are the processes on the card: this one, or nil where it is not there
// or not known, and the others. In a container NVML may have the host's numbers of
// processes: then ours is taken to be the one with the least memory of those that
// have what we hold.
func (c *realCard) processes(held int64) (own *nvmlite.Process, others []nvmlite.Process) {
	n, err := c.nvml()
	if err != nil {
		return nil, nil
	}
	all, err := n.Processes()
	if err != nil {
		return nil, nil
	}
	mine := slices.IndexFunc(all, func(p nvmlite.Process) bool { return p.PID == os.Getpid() })
	if mine < 0 && c.used() != nil {
		for i, p := range all {
			if p.Bytes >= held && (mine < 0 || p.Bytes < all[mine].Bytes) {
				mine = i
			}
		}
	}
	for i := range all {
		if i == mine {
			own = &all[i]
		} else {
			others = append(others, all[i])
		}
	}
	return own, others
}

func (d *realDriver) others(i int) []ProcessMemory {
	c := d.visible[i]
	_, others := c.processes(c.held.Load())
	var list []ProcessMemory
	for _, p := range others {
		list = append(list, ProcessMemory{PID: p.PID, Name: processName(p.PID), Bytes: p.Bytes})
	}
	return list
}

// processName is a process's name, or "a process" where it is not known.
func processName(pid int) string {
	if api, err := nvmlite.Load(); err == nil {
		if name, err := api.ProcessName(pid); err == nil && name != "" {
			return name
		}
	}
	return "a process"
}

// synchronize waits for all that the card was given. A card that was never used has
// nothing to wait for, and gets no context.
func (d *realDriver) synchronize(i int) error {
	if d.visible[i].used() == nil {
		return nil
	}
	return d.visible[i].transfer.synchronize()
}

// realRegion is memory of a card.
type realRegion struct {
	owner *realCard
	addr  cuda.Ptr
	bytes int64
}

func (r *realRegion) host() []byte { return nil }

func (r *realRegion) write(off int64, src []byte) error {
	return r.owner.transfer.write(r.addr+cuda.Ptr(off), src)
}

func (r *realRegion) read(dst []byte, off int64) error {
	return r.owner.transfer.read(dst, r.addr+cuda.Ptr(off))
}

func (r *realRegion) recycle(int64, int64) {}

// release waits for the stream first: writes to the memory may be on their way.
func (r *realRegion) release() error {
	card := r.owner.card
	err := card.Do(func() error {
		return errors.Join(card.StreamSynchronize(card.Stream), card.API.MemFree(r.addr))
	})
	if err == nil {
		r.owner.held.Add(-r.bytes)
	}
	return err
}
