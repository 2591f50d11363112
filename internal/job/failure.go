package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/tandem-train/tandem/internal/atomicfile"
)

// Failure is why a worker failed, in its own words.
type Failure struct {
	Time  time.Time `json:"time"`
	Rank  int       `json:"rank"`
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Error string    `json:"error"`
	Stack string    `json:"stack,omitempty"`

	// Consequence says that another rank failed first, and By which: -1 if that is not known.
	Consequence bool `json:"consequence,omitempty"`
	By          int  `json:"by,omitempty"`
}

// Report leaves a failure of this process in its error file for the launcher, which reads it if the process then ends with a failure. The
// last one counts. It fills in time, rank, process and host. Without an error file it does nothing.
func (p *Place) Report(f Failure) error {
	if p == nil || p.ErrorFile == "" {
		return nil
	}
	f.Time, f.Rank, f.PID = time.Now(), p.Rank, os.Getpid()
	f.Host, _ = os.Hostname() // a report without it is better than none
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("job: error file: %w", err)
	}
	if err := atomicfile.Write(p.ErrorFile, text); err != nil {
		return fmt.Errorf("job: error file: %w", err)
	}
	return nil
}

// Withdraw takes back what Report has left: the process went on.
func (p *Place) Withdraw() error {
	if p == nil || p.ErrorFile == "" {
		return nil
	}
	if err := os.Remove(p.ErrorFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("job: error file: %w", err)
	}
	return nil
}

// ReadFailure reads what a worker left in its error file: nil if it left nothing.
func ReadFailure(path string) (*Failure, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("job: error file: %w", err)
	}
	f := new(Failure)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("job: error file %s: %w", path, err)
	}
	return f, nil
}
