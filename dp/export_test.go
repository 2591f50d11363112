package dp

// Session is what connects processes.
type Session = session

// WithSession makes a trainer one of several processes of a job.
func WithSession(s Session) Option { return func(c *config) { c.session = s } }
