package dp

import "github.com/tandem-train/tandem/internal/ir"

// WrapDevices puts a test between a trainer and its devices.
func WrapDevices(wrap func(ir.Device) ir.Device) Option {
	return func(c *config) { c.wrap = wrap }
}

// Session is what connects processes.
type Session = session

// WithSession makes a trainer one of several processes of a job.
func WithSession(s Session) Option { return func(c *config) { c.session = s } }
