package dp

import (
	"context"

	"github.com/tandem-train/tandem/internal/ir"
)

// WrapDevices puts a test between a trainer and its devices.
func WrapDevices(wrap func(ir.Device) ir.Device) Option {
	return func(c *config) { c.wrap = wrap }
}

// FromLarge makes every program a large one, whose memory matters most.
func FromLarge() Option { return func(c *config) { c.large = 1 } }

// GradientsApart lets two ranks tell each other their gradients of bf16 however few they are.
func GradientsApart() Option { return func(c *config) { c.apart = 1 } }

// Session is what connects processes.
type Session = session

// WithSession makes a trainer one of several processes of a job.
func WithSession(s Session) Option { return func(c *config) { c.session = s } }

// Buckets are the ranges of a model's gradients that linked cards sum one after the other.
var (
	Buckets    = buckets
	BucketSize = bucketSize
)

// ParametersOf are the parameters as a rank of this process has them, with what lies between them.
func ParametersOf(t *DataParallel, of int) ([]float32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := make([]float32, t.compiler.Layout.Elements)
	err := t.team.do(context.Background(), rankFunc(func(r *rank) error {
		if r.index != of {
			return nil
		}
		return r.mem[ir.Params].Read(0, ir.Bytes(x))
	}))
	return x, err
}
