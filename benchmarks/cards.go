package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/nn"
)

const cardsSuite = "cards"

func init() {
	register(suite{cardsSuite, "training on all CUDA cards that are visible, in one process and in one a card", []workload{
		{"cards-mlp", "784-512-512-10, batches of 64 and 4096, tf32", onCards("mlp")},
		{"cards-cnn", "two 3x3 convolutions (1-32-64), 9216-128-10, batches of 64 and 4096, tf32", onCards("cnn")},
		{"cards-big", "four layers 8192-8192, 8192-1000, batches of 4096, tf32 and bf16", onCards("big")},
		{"cards-sums", "all-reduces of 1 KB to 1 GB", cardsSums},
		{"cards-start", "from the start of a job, a process a card, to its first finished step", cardsStart},
	}})
}

// team is how cards train one of the cases.
type team struct {
	Name      string
	Batch     int // of all cards together
	Precision string
	Strategy  string
}

// beside reports whether teams are of the same case.
func (c team) beside(other team) bool {
	other.Strategy = c.Strategy
	return c == other
}

// trainer prepares training with more options.
func (c team) trainer(opts ...dp.Option) (*dp.DataParallel, error) {
	precision, err := nn.ParsePrecision(c.Precision)
	if err != nil {
		return nil, err
	}
	strategy, err := dp.ParseStrategy(c.Strategy)
	if err != nil {
		return nil, err
	}
	opts = append(opts, dp.Seed(1), dp.WithPrecision(precision), dp.WithStrategy(strategy))
	return dp.New(cardNets[c.Name].model(), nn.CrossEntropy(), nn.SGD(learningRate, nn.Momentum(0.9)), opts...)
}

// stage is where teams train. Each stays ready; but of the large network only one is there at a time where the cards have no room for all,
// beside PyTorch's.
type stage struct {
	ready map[string]*trainee
	roomy bool
}

// roomForAll is how many bytes a card has that has room for the large network in all modes. It is in torch_cards.py, too.
const roomForAll = 128e9

func newStage() (*stage, error) {
	p, err := cudaops.DeviceProperties(0)
	return &stage{map[string]*trainee{}, p.TotalMemory >= roomForAll}, err
}

// trainee is a team that is ready to train.
type trainee struct {
	team team
	*dp.DataParallel
	batch *dp.Batch
}

// contender makes steps of a team, on some cards of this process, or as a rank of a job.
func (s *stage) contender(t team, cards ...int) contender {
	key := fmt.Sprint(t, cards)
	return func(ctx context.Context, n int) (time.Duration, error) {
		r := s.ready[key]
		if r == nil {
			if t.Name == "big" && !s.roomy {
				if err := s.close(); err != nil {
					return 0, err
				}
			}
			var err error
			if r, err = t.open(cards); err != nil {
				return 0, err
			}
			s.ready[key] = r
			if _, err := ahead(r.step)(ctx, 8); err != nil { // by which all is measured and captured
				return 0, err
			}
		}
		return ahead(r.step)(ctx, n)
	}
}

// leave ends teams.
func (s *stage) leave(which func(team) bool) error {
	var errs []error
	for key, r := range s.ready {
		if which(r.team) {
			errs = append(errs, r.batch.Free(), r.Close())
			delete(s.ready, key)
		}
	}
	return errors.Join(errs...)
}

func (s *stage) close() error { return s.leave(func(team) bool { return true }) }

// open prepares training on a batch, or on this process's share of it, that lies on the cards.
func (t team) open(cards []int) (*trainee, error) {
	var opts []dp.Option
	if len(cards) > 0 {
		opts = append(opts, dp.DeviceIDs(cards...))
	}
	d, err := t.trainer(opts...)
	if err != nil {
		return nil, err
	}
	mine := data.Range{Hi: t.Batch}
	if d.WorldSize() > len(d.Devices()) {
		mine = data.Chunk(t.Batch, d.WorldSize(), d.Rank())
	}
	x, y := cardNets[t.Name].samples(mine.Len())
	b, err := d.Upload(x, y)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &trainee{t, d, b}, nil
}

func (r *trainee) step(ctx context.Context) (*dp.Loss, error) { return r.StepBatch(ctx, r.batch) }

// onCards times steps of SGD with momentum on batches that are on the cards, with each strategy, in one process and in one a card, beside
// PyTorch in its modes and beside one card.
func onCards(name string) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		cards, err := severalCards()
		if err != nil {
			return err
		}
		workers, err := startWorkers(ctx, cards)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, workers.close()) }()
		peer, end, err := torchOnAll(ctx, b, cards)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		for _, c := range cardCases {
			if c.name != name {
				continue
			}
			if err := c.onCards(ctx, b, cards, workers, peer); err != nil {
				return fmt.Errorf("batch %d: %w", c.batch, err)
			}
		}
		return nil
	}
}

// severalCards is how many cards there are to use.
func severalCards() (int, error) {
	cards, err := cudaops.AvailableDevices()
	if err == nil && len(cards) < 2 {
		err = fmt.Errorf("%d cards are visible, and this takes two: see tandem devices", len(cards))
	}
	return len(cards), err
}

func (c cardCase) onCards(ctx context.Context, b *bench, cards int, workers *workers, peer *torch) (err error) {
	b.log("%s: %s, batch %d, %v", b.suite, c.name, c.batch, c.precision)
	here, err := newStage()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, here.close()) }()
	all := make([]int, cards)
	for i := range all {
		all[i] = i
	}
	var entrants []entrant
	mode := func(what string) func(t timing) row { return c.took(c.pipelined() + what) }
	for _, s := range []dp.Strategy{dp.Gather, dp.AllReduce, dp.Sharded} {
		t := team{c.name, c.batch, c.precision.String(), s.String()}
		entrants = append(entrants,
			entrant{row: mode(fmt.Sprintf(", %v, 1 process", s)), run: here.contender(t, all...)},
			entrant{row: mode(fmt.Sprintf(", %v, %d processes", s, cards)), run: workers.contender(t)},
		)
	}
	ours := len(entrants)
	one := team{c.name, c.batch / cards, c.precision.String(), dp.Gather.String()}
	entrants = append(entrants, entrant{run: here.contender(one, 0), row: func(t timing) row { return stepTime(c.name, one.Batch, "1 card, "+c.pipelined(), t) }})
	if peer != nil {
		for _, m := range cardsModes {
			entrants = append(entrants, entrant{peer: torchPeer + " " + m, row: mode(""), run: peer.onCards(c.name, c.batch, m, c.precision.String())})
		}
	}
	reached, err := b.compare(ctx, entrants...)
	if err != nil {
		return err
	}
	for _, r := range reached[:ours] {
		b.add(scaling(r, reached[ours], cards))
	}
	return nil
}

// scalesTo is the metric of how much of so many cards' speed there is when they train together, each on as many samples as one card alone.
const scalesTo = "scaling"

// scaling compares a step of several cards with one card's, on its part of the batch.
func scaling(all, one row, cards int) row {
	r := row{Workload: all.Workload, Batch: all.Batch, Mode: all.Mode, Metric: scalesTo, Value: one.Value / all.Value, Unit: fmt.Sprintf("of %d cards", cards)}
	return r.against("1 card", 1)
}

// startTeam is what jobs begin to train whose start is timed; on the host too, where it is the network and the batch.
var startTeam = team{Name: "mlp", Batch: 64, Precision: nn.TF32.String(), Strategy: dp.AllReduce.String()}

// cardsStart times starts of jobs of a process a card that make a step, ours and PyTorch's in turn. The first of ours, which may have kernels
// to compile, does not count.
func cardsStart(ctx context.Context, b *bench) (err error) {
	cards, err := severalCards()
	if err != nil {
		return err
	}
	b.log("%s: start", b.suite)
	tandem, self, remove, err := commands(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	n := strconv.Itoa(cards)
	took := func(t timing) row {
		r := stepTime(startTeam.Name, startTeam.Batch, fmt.Sprintf("%d processes", cards), t)
		r.Metric = startToStep
		return r
	}
	ours := starts(atCards, tandem, "run", "--nproc-per-node", n, self)
	if _, err := ours(ctx, 1); err != nil {
		return err
	}
	entrants := []entrant{{row: took, run: ours}}
	if b.wants(torchPeer) {
		script, err := b.script(torchOnCards)
		if err != nil {
			return err
		}
		request := fmt.Sprintf(`{"workload": %q, "size": %d, "mode": "ddp", "precision": %q}`, startTeam.Name, startTeam.Batch, startTeam.Precision)
		entrants = append(entrants, entrant{peer: torchPeer + "run", row: took,
			run: starts(atCards, "python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n, script, "--once", request)})
	}
	few := *b
	few.sampling = sampling{runs: min(b.runs, 3), cold: true}
	_, err = few.compare(ctx, entrants...)
	b.rows = few.rows
	return err
}
