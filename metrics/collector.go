package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
)

// Trainer is what there is to show: a [dp.DataParallel].
type Trainer interface {
	Rank() int      // of the first replica of this process
	Devices() []int // by replica, [dp.Host] for the host
	Progress() dp.Progress
}

// collector reads a trainer when it is asked to.
type collector struct {
	trainer  Trainer
	restarts int

	steps, samples, speed, loss, restarted *prometheus.Desc // of the process
	collectives                            *prometheus.Desc // of a rank
	allocated, reserved, limit             *prometheus.Desc // of its card
}

// NewCollector gives a registry what the package doc lists, of one trainer.
func NewCollector(t Trainer) (prometheus.Collector, error) {
	place, err := ownPlace()
	if err != nil {
		return nil, err
	}
	first := prometheus.Labels{"rank": strconv.Itoa(t.Rank())}
	ofProcess := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("tandem_"+name, help, nil, first) }
	ofRank := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tandem_"+name, help, append([]string{"rank"}, labels...), nil)
	}
	return &collector{
		trainer: t, restarts: place.Restart,
		steps:       ofProcess("step_duration_seconds", "Time of steps, from call to loss."),
		samples:     ofProcess("samples_total", "Samples trained on by the ranks of this process."),
		speed:       ofProcess("samples_per_second", "Samples of the last step, per second of it."),
		loss:        ofProcess("loss", "Loss of the last step, over the whole batch."),
		restarted:   ofProcess("restarts_total", "How often the launcher has started the job again."),
		collectives: ofRank("collective_seconds_total", "Time in collectives on the host; where cards are linked, the wait before theirs."),
		allocated:   ofRank("memory_allocated_bytes", "Card memory that this process uses.", "card", "uuid"),
		reserved:    ofRank("memory_reserved_bytes", "Card memory that this process uses or caches.", "card", "uuid"),
		limit:       ofRank("memory_limit_bytes", "Card memory that this process may hold, and what limits it.", "card", "uuid", "source"),
	}, nil
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.steps, c.samples, c.speed, c.loss, c.restarted, c.collectives, c.allocated, c.reserved, c.limit} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	p := c.trainer.Progress()
	put := func(kind prometheus.ValueType, d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	ch <- prometheus.MustNewConstSummary(c.steps, uint64(p.Steps), p.Time.Seconds(), nil)
	put(prometheus.CounterValue, c.samples, float64(p.Samples))
	put(prometheus.CounterValue, c.restarted, float64(c.restarts))
	if p.Steps > 0 {
		put(prometheus.GaugeValue, c.speed, p.SamplesPerSecond())
		put(prometheus.GaugeValue, c.loss, p.Loss)
	}
	for i, spent := range p.Collectives {
		put(prometheus.CounterValue, c.collectives, spent.Seconds(), strconv.Itoa(c.trainer.Rank()+i))
	}
	for i, card := range c.trainer.Devices() {
		if card == dp.Host {
			continue
		}
		m, err := memoryOf(card)
		if err != nil {
			ch <- prometheus.NewInvalidMetric(c.allocated, err)
			continue
		}
		labels := []string{strconv.Itoa(c.trainer.Rank() + i), strconv.Itoa(card), m.uuid}
		put(prometheus.GaugeValue, c.allocated, float64(m.allocated), labels...)
		put(prometheus.GaugeValue, c.reserved, float64(m.reserved), labels...)
		put(prometheus.GaugeValue, c.limit, float64(m.limit.Bytes), append(labels, m.limit.Source.String())...)
	}
}

// memory is what this process has of a card.
type memory struct {
	uuid                string
	allocated, reserved int64
	limit               cudaops.Limit
}

func memoryOf(card int) (m memory, err error) {
	properties, err := cudaops.DeviceProperties(card)
	if err != nil {
		return m, err
	}
	stats, err := cudaops.MemoryStats(card)
	if err != nil {
		return m, err
	}
	m = memory{uuid: properties.UUID, allocated: stats.All.AllocatedBytes.Current, reserved: stats.All.ReservedBytes.Current}
	m.limit, err = cudaops.MemoryLimit(card)
	return m, err
}
