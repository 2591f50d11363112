package comm

import (
	"fmt"
	"os"
	"time"
)

const (
	defaultTimeout  = 5 * time.Minute
	timeoutVariable = "TANDEM_TIMEOUT"
)

// Option configures a group.
type Option func(*config) error

type config struct {
	limit time.Duration // 0: not given
}

// Timeout limits how long a rank waits for others in one call. It goes before the variable TANDEM_TIMEOUT, which holds a
// duration such as 90s; without both the limit is 5 minutes.
func Timeout(limit time.Duration) Option {
	return func(c *config) error {
		if limit <= 0 {
			return fmt.Errorf("comm: timeout %v: it must be more than 0", limit)
		}
		c.limit = limit
		return nil
	}
}

func configure(opts []Option) (config, error) {
	var c config
	for _, o := range opts {
		if err := o(&c); err != nil {
			return c, err
		}
	}
	if c.limit > 0 {
		return c, nil
	}
	c.limit = defaultTimeout
	if text := os.Getenv(timeoutVariable); text != "" {
		limit, err := time.ParseDuration(text)
		if err == nil && limit <= 0 {
			err = fmt.Errorf("it must be more than 0")
		}
		if err != nil {
			return c, fmt.Errorf("comm: %s=%q: %w: give a duration such as 90s or 5m", timeoutVariable, text, err)
		}
		c.limit = limit
	}
	return c, nil
}
