package dp

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp/comm"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/job"
	"github.com/tandem-train/tandem/nn"
)

// Host is the device number of the host.
const Host = cudaops.Host

// Strategy says how gradients become new parameters. Strategies differ in speed and memory, never in the numbers beyond
// rounding.
type Strategy int

// The strategies.
const (
	// Gather sums the gradients on the primary card, updates there, and replicates the parameters from it.
	Gather Strategy = iota
	// AllReduce sums the gradients on every card, and every card updates.
	AllReduce
	// Sharded leaves each card the sum of a share of the gradients; it updates that share of the parameters, with that share
	// of the optimizer's state, and gives it to all.
	Sharded
)

var strategies = []string{"gather", "allreduce", "sharded"}

// String returns gather, allreduce or sharded.
func (s Strategy) String() string {
	if s < 0 || int(s) >= len(strategies) {
		return fmt.Sprintf("Strategy(%d)", int(s))
	}
	return strategies[s]
}

// ParseStrategy is the inverse of String.
func ParseStrategy(name string) (Strategy, error) {
	if i := slices.Index(strategies, name); i >= 0 {
		return Strategy(i), nil
	}
	return 0, fmt.Errorf("dp: no strategy %q: use gather, allreduce or sharded", name)
}

type config struct {
	ids      []int
	idsSet   bool
	output   int
	outSet   bool
	dim      int
	strategy Strategy
	seed     uint64
	seedSet  bool
	schedule nn.Schedule
	clip     []nn.Clip
	micro    int
	auto     bool   // more parts where memory is short
	budget   *int64 // for activations; nil: none
	precise  nn.Precision
	bucket   *int // bytes; 0: all gradients at once; nil: by their size
	logger   *slog.Logger
	timeout  time.Duration
	alone    bool
	session  session // nil: that of the process's job
	wrap     func(ir.Device) ir.Device
	large    int64 // bytes; 0 is large
	apart    int64 // bytes; 0 is apart
}

// Option changes how New sets up training.
type Option func(*config)

// DeviceIDs names the cards to train on, by logical number; the first is the primary card. The default is all visible cards,
// or the host when there is none. DeviceIDs(Host) trains on the host whatever cards there are.
func DeviceIDs(ids ...int) Option {
	return func(c *config) { c.ids, c.idsSet = slices.Clone(ids), true }
}

// OutputDevice names the card that Forward gathers its outputs on, or Host. The default is the primary card.
func OutputDevice(id int) Option { return func(c *config) { c.output, c.outSet = id, true } }

// WithStrategy chooses the strategy; the default is Gather.
func WithStrategy(s Strategy) Option { return func(c *config) { c.strategy = s } }

// Dim is the dimension of the input along which a batch is scattered and outputs are gathered; the default is 0. Targets are
// scattered along it too where they have it, else along 0. Dropout's bits are those of one card only for 0.
func Dim(d int) Option { return func(c *config) { c.dim = d } }

// Seed keys the initial values of parameters that have none and the random numbers of training. The default is the primary
// card's seed (cudaops.ManualSeed).
func Seed(n uint64) Option { return func(c *config) { c.seed, c.seedSet = n, true } }

// WithSchedule sets the learning rate of each step from the optimizer's base rate.
func WithSchedule(s nn.Schedule) Option { return func(c *config) { c.schedule = s } }

// WithClip clips the gradients of the whole batch before each update, in the order given.
func WithClip(clips ...nn.Clip) Option { return func(c *config) { c.clip = append(c.clip, clips...) } }

// WithPrecision says how products and convolutions round; the default is nn.FP32.
func WithPrecision(p nn.Precision) Option { return func(c *config) { c.precise = p } }

// MicroBatches computes each rank's share in up to n parts, one after the other, and adds their gradients up before the update:
// the result is that of the whole batch (BatchNorm excepted, whose statistics are then those of a part) in about an n-th of the
// activations' memory.
func MicroBatches(n int) Option { return func(c *config) { c.micro = n } }

// AutoMicroBatch lets a step that does not fit on its cards be computed in parts, as few as do fit, see [MicroBatches], which it takes for
// the least number. Where another process takes the memory meanwhile, the step is planned again. [DataParallel.Plan] says in how many parts
// a batch will be computed.
func AutoMicroBatch() Option { return func(c *config) { c.auto = true } }

// Recompute lets training programs take at most budget bytes for activations on each card, or as few as that is possible with: what is not
// needed for a while is dropped, and computed again before it is, where that saves most memory for least time. The result is the same, to
// the bit. [DataParallel.Plan] says what comes of it; without Recompute it says what the activations take by themselves.
func Recompute(budget int64) Option { return func(c *config) { c.budget = &budget } }

// BucketBytes says how large the buckets are, about, in which cards that are linked sum gradients (DistributedDataParallel's bucket_cap_mb),
// each as soon as backward has finished it, so that the sums go on beside backward. 0 is to sum all at once. Without this option the size
// follows from that of the gradients: a bucket costs a launch, and the last one's sum has no backward beside it. No number depends on it but, by
// NCCL between more than two cards, in its rounding.
func BucketBytes(n int) Option { return func(c *config) { c.bucket = &n } }

// WithLogger takes warnings: an imbalance of cards, parameters without gradient. The default is slog.Default().
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// Timeout limits every wait of a rank for another one. The default is that of package comm: five minutes, or TANDEM_TIMEOUT.
func Timeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// Alone trains in this process by itself, even in one of a job of several.
func Alone() Option { return func(c *config) { c.alone = true } }

// resolve checks the options against the cards that there are, and fills in defaults. place is nil for a process by itself.
func (c *config) resolve(place *job.Place) error {
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		return err
	}
	switch {
	case c.idsSet && len(c.ids) == 0:
		return errors.New("dp: DeviceIDs() names no card: name some, or leave it out for all visible ones")
	case c.idsSet && place != nil && len(c.ids) > 1:
		return fmt.Errorf("dp: device_ids %s: this is rank %d of a job of %d processes, of which each drives one card: name one, or leave DeviceIDs out", list(c.ids), place.Rank, place.World)
	case c.idsSet:
	case len(cards) == 0:
		c.ids = []int{Host}
	case place != nil:
		if c.ids, err = ownCard(place, len(cards)); err != nil {
			return err
		}
	default:
		for _, d := range cards {
			c.ids = append(c.ids, d.Logical)
		}
	}
	for i, id := range c.ids {
		if id == Host && len(c.ids) == 1 {
			continue
		}
		if _, err := cudaops.DeviceProperties(id); err != nil {
			return fmt.Errorf("dp: device_ids %s: %w%s", list(c.ids), err, working(len(c.ids), len(cards)))
		}
		if slices.Contains(c.ids[:i], id) {
			return &DuplicateDeviceError{IDs: c.ids, ID: id}
		}
	}
	if !c.outSet {
		c.output = c.ids[0]
	} else if c.output != Host {
		if _, err := cudaops.DeviceProperties(c.output); err != nil {
			return fmt.Errorf("dp: output_device %d: %w", c.output, err)
		}
	}
	switch {
	case c.strategy < Gather || c.strategy > Sharded:
		return fmt.Errorf("dp: no strategy %v: use Gather, AllReduce or Sharded", c.strategy)
	case c.precise > nn.FP16:
		return fmt.Errorf("dp: no precision %v: use nn.FP32, nn.TF32, nn.BF16 or nn.FP16", c.precise)
	case c.micro < 0:
		return fmt.Errorf("dp: MicroBatches(%d): give at least 1", c.micro)
	case c.bucket != nil && *c.bucket < 0:
		return fmt.Errorf("dp: BucketBytes(%d): give the bytes of a bucket, or 0 to sum all gradients at once", *c.bucket)
	case c.budget != nil && *c.budget < 0:
		return fmt.Errorf("dp: Recompute(%d): give bytes, at least 0", *c.budget)
	case c.dim < 0:
		return fmt.Errorf("dp: Dim(%d): give a dimension of the input, from 0", c.dim)
	case c.timeout < 0:
		return fmt.Errorf("dp: Timeout(%v): give a positive limit", c.timeout)
	}
	c.micro = max(c.micro, 1)
	if c.apart == 0 {
		c.apart = apart
	}
	if c.large == 0 {
		c.large = large
	}
	if c.logger == nil {
		c.logger = slog.Default()
	}
	if !c.seedSet {
		c.seed = defaultSeed
		if c.ids[0] != Host {
			if c.seed, err = cudaops.InitialSeed(c.ids[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// comm are the options of the groups of ranks.
func (c *config) comm() []comm.Option {
	if c.timeout > 0 {
		return []comm.Option{comm.Timeout(c.timeout)}
	}
	return nil
}

// ownCard is the card of one of several processes, for which so many are visible: the only one, as the launcher arranges it, or the
// one with the process's number on its host.
func ownCard(place *job.Place, cards int) ([]int, error) {
	switch {
	case cards == 1:
		return []int{0}, nil
	case place.LocalRank < cards:
		return []int{place.LocalRank}, nil
	}
	return nil, fmt.Errorf("dp: this is process %d of %d on this host, and %d cards are visible: start at most as many, or give each its card with CUDA_VISIBLE_DEVICES (tandem run does)", place.LocalRank, place.LocalWorld, cards)
}

// working shows a call that works in the place of one that names n cards, of which there are only so many.
func working(n, cards int) string {
	if cards == 0 {
		return ""
	}
	ids := make([]string, min(n, cards))
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	return fmt.Sprintf("; a call that works: dp.DeviceIDs(%s)", strings.Join(ids, ", "))
}

// defaultSeed is what cards start with, too.
const defaultSeed = 67280421310721

// warnImbalance says when the smallest card has under 75 % of the largest's memory or multiprocessors: every card gets an
// equal share, so that the largest waits.
func (c *config) warnImbalance() error {
	if len(c.ids) < 2 {
		return nil
	}
	props := make([]cudaops.Properties, len(c.ids))
	for i, id := range c.ids {
		p, err := cudaops.DeviceProperties(id)
		if err != nil {
			return err
		}
		props[i] = p
	}
	warn := func(what string, of func(cudaops.Properties) int64) bool {
		lo, hi := 0, 0
		for i, p := range props {
			if of(p) < of(props[lo]) {
				lo = i
			}
			if of(p) > of(props[hi]) {
				hi = i
			}
		}
		if of(props[lo])*4 >= of(props[hi])*3 {
			return false
		}
		c.logger.Warn(fmt.Sprintf("imbalance between cards: %s (%s) has less than 75 %% of the %s of %s (%s); shares are equal, so leave it out of DeviceIDs or choose cards with CUDA_VISIBLE_DEVICES",
			cudaops.String(c.ids[lo]), props[lo].Name, what, cudaops.String(c.ids[hi]), props[hi].Name))
		return true
	}
	_ = warn("memory", func(p cudaops.Properties) int64 { return p.TotalMemory }) ||
		warn("multiprocessors", func(p cudaops.Properties) int64 { return int64(p.MultiProcessorCount) })
	return nil
}
