package dp

import "github.com/tandem-train/tandem/internal/ir"

// WrapDevices puts a test between a trainer and its devices.
func WrapDevices(wrap func(ir.Device) ir.Device) Option {
	return func(c *config) { c.wrap = wrap }
}

// FromLarge makes every program a large one, whose memory matters most.
func FromLarge() Option { return func(c *config) { c.large = 1 } }

// Session is what connects processes.
type Session = session

// WithSession makes a trainer one of several processes of a job.
func WithSession(s Session) Option { return func(c *config) { c.session = s } }

// Buckets are the ranges of a model's gradients that linked cards sum one after the other.
var (
	Buckets    = buckets
	BucketSize = bucketSize
)
