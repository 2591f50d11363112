package dp

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/internal/ir"
)

// Progress is how far the training of this process has come, for whoever watches it. Steps that are under way are not in it yet.
type Progress struct {
	Steps   int           // done since New
	Samples int64         // of those steps, on this process's ranks
	Time    time.Duration // in those steps, from call to loss; time that two of them share counts once
	Loss    float64       // of the last one, over the whole batch; NaN before the first

	LastSamples int64 // of the last step
	LastTime    time.Duration

	// Collectives is, for each rank of this process, the time in the collectives of steps on the host, waiting for others included. Where
	// cards are linked they sum by themselves, and this is what ranks wait for each other before that.
	Collectives []time.Duration
}

// SamplesPerSecond is the speed of the last step; 0 before the first.
func (p *Progress) SamplesPerSecond() float64 {
	if p.LastTime == 0 {
		return 0
	}
	return float64(p.LastSamples) / p.LastTime.Seconds()
}

// Progress says how far training has come. It waits for nothing, and may be called at any time, after Close, too.
func (t *DataParallel) Progress() Progress {
	p := t.meter.read()
	p.Collectives = make([]time.Duration, len(t.team.ranks))
	for i, r := range t.team.ranks {
		p.Collectives[i] = time.Duration(r.exchanged.Load())
	}
	return p
}

// meter counts steps as they are done.
type meter struct {
	began time.Time // when the call in progress did, under the trainer's lock
	end   time.Time // of the last step, under the same

	mu sync.Mutex
	p  Progress
}

func (m *meter) read() Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.p
	if p.Steps == 0 {
		p.Loss = math.NaN()
	}
	return p
}

// done counts a step whose call began at a time.
func (m *meter) done(began time.Time, samples int, loss float64) {
	now := time.Now()
	if began.Before(m.end) { // another step was under way then
		began = m.end
	}
	m.end = now
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.p
	p.LastSamples, p.LastTime, p.Loss = int64(samples), now.Sub(began), loss
	p.Steps++
	p.Samples += p.LastSamples
	p.Time += p.LastTime
}

// samplesHere is how many of a batch's samples this process's ranks have.
func (t *DataParallel) samplesHere(shares []data.Range) (n int) {
	for _, s := range shares[t.Rank():][:len(t.team.ranks)] {
		n += s.Len()
	}
	return n
}

// timed counts the time in a rank's collectives.
type timed struct {
	ir.Peers
	spent *atomic.Int64 // nanoseconds
}

// Collective implements [ir.Comm].
func (c timed) Collective(ctx context.Context, op ir.Collective, buf []float32) error {
	began := time.Now()
	err := c.Peers.Collective(ctx, op, buf)
	c.spent.Add(int64(time.Since(began)))
	return err
}
