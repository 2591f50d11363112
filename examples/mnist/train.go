package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"math"
	"strings"
	"time"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/nn"
)

// errInterrupted is the error of a run that was ended from outside. What it had reached is reported all the same.
var errInterrupted = errors.New("interrupted")

// session is one training run.
type session struct {
	opts        *options
	model       nn.Module
	trainer     *dp.DataParallel
	train, test *data.Loader
	planned     int // steps
	console     *console
	curves      *curves // nil: none
	reached     progress
}

// progress is how far a session has come.
type progress struct {
	steps    int     // done
	loss     float64 // of the last step
	accuracy float64 // on the test images, 0..1
	tested   int     // steps that the tested model had; 0 before the first test
	skipped  int     // steps, by then, whose gradients did not fit in float16

	images, firstImages int           // of all steps, of the first
	busy, firstBusy     time.Duration // in training, by all steps and by the first
	firstStep           time.Duration // from the start of the process to the end of the first step
}

// imagesPerSecond is the speed of training without tests, and without the first step where there are more: that one compiles.
func (p *progress) imagesPerSecond() float64 {
	images, busy := p.images-p.firstImages, p.busy-p.firstBusy
	if images == 0 {
		images, busy = p.images, p.busy
	}
	if images == 0 {
		return 0
	}
	return float64(images) / busy.Seconds()
}

// train does what the options ask for.
func train(ctx context.Context, o *options, c *console) (err error) {
	for _, f := range []struct{ flag, path string }{{"--report", o.report}, {"--checkpoint", o.checkpoint}} {
		if f.path == "" {
			continue
		}
		if err := checkFile(f.flag, f.path); err != nil {
			return err
		}
	}
	s, err := newSession(o, c)
	if err != nil {
		return err
	}
	ctx, stopSignals := untilSignal(ctx)
	defer stopSignals()
	defer func() { err = errors.Join(err, s.trainer.Close()) }()
	if o.plan || o.planPNG != "" {
		return s.plan()
	}

	stop, err := s.watch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	err = s.run(ctx)
	interrupted := errors.Is(err, context.Canceled) // a *dp.StoppedError, too: by a signal to another process of the job
	if interrupted {
		s.console.notef("mnist: stopping after %d steps: testing what was reached (Ctrl-C once more ends at once)", s.reached.steps)
		err = s.conclude(context.WithoutCancel(ctx))
		if err == nil {
			err = s.save()
		}
	}
	if err != nil {
		return err
	}
	if o.report != "" && s.trainer.Rank() == 0 {
		if err := s.writeReport(o.report); err != nil {
			return err
		}
	}
	if interrupted {
		return fmt.Errorf("%w after %d of %d steps", errInterrupted, s.reached.steps, s.planned)
	}
	if o.bare {
		s.console.resultf("%s", whatNext)
	}
	return nil
}

// newSession builds the model on its cards and opens the data. The caller closes the trainer.
func newSession(o *options, c *console) (*session, error) {
	trainDigits, testDigits, err := loadDigits(o.data)
	if err != nil {
		return nil, err
	}
	s := &session{opts: o, console: c, model: newModel(o.model)}
	if s.train, err = data.NewLoader(trainDigits, o.batchSize, data.Shuffle(o.seed)); err != nil {
		return nil, err
	}
	if s.test, err = data.NewLoader(testDigits, o.evalBatchSize); err != nil {
		return nil, err
	}
	s.planned = o.epochs * s.train.Batches()
	if o.maxSteps > 0 {
		s.planned = min(s.planned, o.maxSteps)
	}

	settings := []dp.Option{
		dp.WithStrategy(o.strategy),
		dp.Seed(o.seed),
		dp.WithPrecision(o.precise),
		dp.WithSchedule(nn.OneCycle(s.planned)),
		dp.WithLogger(slog.New(slog.NewTextHandler(c.notes, nil))),
	}
	if o.split {
		settings = append(settings, dp.AutoMicroBatch())
	}
	if o.recompute != noSize {
		settings = append(settings, dp.Recompute(int64(o.recompute)))
	}
	if err := o.capMemory(); err != nil {
		return nil, err
	}
	if o.devices != nil {
		settings = append(settings, dp.DeviceIDs(o.devices...))
	}
	if s.trainer, err = dp.New(s.model, nn.CrossEntropy(), nn.SGD(o.lr, nn.Momentum(0.9)), settings...); err != nil {
		return nil, deviceError(err, o)
	}
	rank, world := s.trainer.Rank(), s.trainer.WorldSize()
	if rank > 0 {
		s.console = silentConsole() // rank 0 speaks for all
	}
	if o.feed == shard && len(s.trainer.Devices()) < world { // one process of several
		if s.train, err = data.NewLoader(trainDigits, o.batchSize, data.Shuffle(o.seed), data.Shard(rank, world)); err != nil {
			return nil, errors.Join(err, s.trainer.Close())
		}
	}
	return s, nil
}

// run trains for the planned steps, with a test after each epoch and at the end.
func (s *session) run(ctx context.Context) error {
	if err := s.introduce(); err != nil {
		return err
	}
	if err := s.resume(); err != nil {
		return err
	}
	begin := time.Now()
	for s.reached.steps < s.planned {
		if err := s.epoch(ctx); err != nil {
			return err
		}
		if err := s.conclude(ctx); err != nil {
			return err
		}
		if err := s.save(); err != nil {
			return err
		}
	}
	if err := s.conclude(ctx); err != nil { // of a checkpoint that had all steps
		return err
	}
	s.console.resultf("test accuracy %.2f %% after %d steps in %.1f s", 100*s.reached.accuracy, s.reached.steps, time.Since(begin).Seconds())
	return nil
}

// introduce says what is about to be trained, and where.
func (s *session) introduce() error {
	params, err := nn.NamedParameters(s.model)
	if err != nil {
		return err
	}
	size := 0
	for _, p := range params {
		size += p.Parameter.Size()
	}
	where := cudaops.String(dp.Host)
	if ids := s.trainer.Devices(); ids[0] != dp.Host {
		names := make([]string, len(ids))
		for i, id := range ids {
			names[i] = cudaops.String(id)
		}
		where = strings.Join(names, ", ")
		if len(ids) > 1 {
			where = fmt.Sprintf("%s (%s)", where, s.trainer.Strategy())
		}
	}
	if world := s.trainer.WorldSize(); world > len(s.trainer.Devices()) {
		where = fmt.Sprintf("%d processes (%s)", world, s.trainer.Strategy())
	}
	s.console.resultf("training %s, %d parameters, on %s: %d images, %d a step", s.opts.model, size, where, s.train.Samples(), s.opts.batchSize)
	return nil
}

// resume goes on from a checkpoint, if there is one.
func (s *session) resume() error {
	path := s.opts.checkpoint
	if path == "" {
		return nil
	}
	err := s.trainer.LoadCheckpoint(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it is for this run to make
	case err != nil:
		return fmt.Errorf("--checkpoint %s: %w", path, err)
	}
	s.reached.steps = s.trainer.Steps()
	s.console.resultf("going on from %s, after %d of %d steps", path, s.reached.steps, s.planned)
	return nil
}

// save keeps a checkpoint, if one is asked for.
func (s *session) save() error {
	path := s.opts.checkpoint
	if path == "" {
		return nil
	}
	if err := s.trainer.SaveCheckpoint(path); err != nil {
		return fmt.Errorf("--checkpoint %s: %w", path, err)
	}
	return nil
}

// epoch trains on every image once, in an order that the seed and the epoch's number fix, or until the planned steps are done; of an epoch that
// was begun before, on those that are left.
func (s *session) epoch(ctx context.Context) error {
	r := &s.reached
	epoch, done := r.steps/s.train.Batches(), r.steps%s.train.Batches()
	steps := min(s.train.Batches()-done, s.planned-r.steps)
	title := fmt.Sprintf("epoch %d/%d", epoch+1, s.opts.epochs)
	m := s.console.meter(title, steps, min(steps*s.opts.batchSize, s.train.Samples()))
	defer m.stop()

	s.curves.epoch(steps)
	begin, busy := time.Now(), r.busy
	for batch, err := range s.batches(epoch) {
		if err != nil {
			return err
		}
		if done > 0 {
			done--
			continue
		}
		step := s.trainer.Step
		if s.opts.feed == shard {
			step = s.trainer.StepShard
		}
		loss, err := step(ctx, batch.X, batch.Y)
		if err != nil {
			return fitError(fmt.Sprintf("--batch-size %d", s.opts.batchSize), err)
		}
		r.loss = loss
		r.steps++
		r.images += batch.GlobalSize
		r.busy = busy + time.Since(begin)
		if r.firstImages == 0 {
			r.firstStep, r.firstImages, r.firstBusy = time.Since(started), r.images, r.busy
		}
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("training has diverged: the loss of step %d is %v: try a smaller --lr than %v", r.steps, loss, s.opts.lr)
		}
		m.step(batch.GlobalSize, loss)
		if err := s.curves.step(s, batch.GlobalSize); err != nil {
			return err
		}
		if r.steps == s.planned {
			break
		}
	}
	return nil
}

// batches are those of an epoch. Where rank 0 scatters them, the other ranks have empty ones. No signal ends them: it is for the step to
// hear of it, with which all processes of a job stop.
func (s *session) batches(epoch int) iter.Seq2[*data.Batch, error] {
	if s.reads(s.opts.feed) {
		return s.train.Epoch(context.Background(), epoch)
	}
	return func(yield func(*data.Batch, error) bool) {
		for range s.train.Batches() {
			if !yield(new(data.Batch), nil) {
				return
			}
		}
	}
}

// reads reports whether this process reads images that processes get in this way.
func (s *session) reads(f feed) bool { return f == shard || s.trainer.Rank() == 0 }

// conclude tests the model as it is, and prints a line about it.
func (s *session) conclude(ctx context.Context) error {
	r := &s.reached
	if r.tested == r.steps {
		return nil // tested as it is, or not even begun
	}
	accuracy, err := s.accuracy(ctx)
	if err != nil {
		return err
	}
	r.accuracy, r.tested = accuracy, r.steps
	line := fmt.Sprintf("step %d/%d  ", r.steps, s.planned)
	if r.images > 0 {
		line += fmt.Sprintf("loss %.4f  test accuracy %.2f %%  %.0f images/s", r.loss, 100*r.accuracy, r.imagesPerSecond())
	} else { // a checkpoint's
		line += fmt.Sprintf("test accuracy %.2f %%", 100*r.accuracy)
	}
	if r.skipped, err = s.trainer.SkippedSteps(); err != nil {
		return err
	}
	if r.skipped > 0 {
		line += fmt.Sprintf("  %d steps skipped, for gradients past float16's range", r.skipped)
	}
	s.console.resultf("%s", line)
	return s.curves.tested(r)
}

// accuracy is the share of the test images that the model reads rightly.
func (s *session) accuracy(ctx context.Context) (float64, error) {
	right, flag := 0, fmt.Sprintf("--eval-batch-size %d", s.opts.evalBatchSize)
	if !s.reads(scatter) {
		for range s.test.Batches() {
			if _, err := s.trainer.Forward(ctx, nil); err != nil {
				return 0, fitError(flag, err)
			}
		}
		return 0, nil
	}
	for batch, err := range s.test.Epoch(context.WithoutCancel(ctx), 0) { // Forward ends with ctx, on all processes
		if err != nil {
			return 0, err
		}
		logits, err := s.trainer.Forward(ctx, batch.X)
		if err != nil {
			return 0, fitError(flag, err)
		}
		right += countRight(logits, batch.Y)
	}
	return float64(right) / float64(s.test.Samples()), nil
}

// countRight counts the rows of logits [N, 10] that are largest at the label.
func countRight(logits, labels *tensor.Dense) int {
	right, all := 0, logits.Float32s()
	for i, label := range labels.Int32s() {
		best, row := 0, all[i*classes:(i+1)*classes]
		for k, v := range row {
			if v > row[best] {
				best = k
			}
		}
		if best == int(label) {
			right++
		}
	}
	return right
}

// whatNext follows a run without flags.
const whatNext = `
What to try next:
  TANDEM_SIM_CARDS=4 go run ./examples/mnist
      the same on four cards, simulated on the host
  TANDEM_SIM_CARDS=4 go run ./examples/mnist --devices 0,2,3 --strategy sharded
      three of them, each updating its part of the parameters
  TANDEM_SIM_CARDS=4 go run ./launcher/tandem run ./examples/mnist
      a process for each card
  go run ./examples/mnist --model cnn --report run.json
      a convolutional network; what was reached goes to a file
  go run ./examples/mnist --help`
