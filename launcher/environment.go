package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strings"

	"github.com/tandem-train/tandem/internal/job"
)

// sweepVariable marks the processes of a job, those included that workers start and leave behind. Unlike the job's name it is no one
// else's: every Run draws its own number. A job inside of another has the other's numbers before its own, so that who ends the outer
// job finds the inner one's processes.
const sweepVariable = "TANDEM_SWEEP_ID"

// sweepMark is the variable's value for a job of this process.
func sweepMark(id string) string {
	if outer := os.Getenv(sweepVariable); outer != "" {
		return outer + ":" + id
	}
	return id
}

// environment is a worker's: base, then the job's variables, then its own; of a variable that comes twice the last one counts. What
// base has of an outer job's descriptor and error file is not for this worker.
func environment(base []string, p *job.Place, mark string, own []string) []string {
	env := slices.DeleteFunc(slices.Clone(base), func(v string) bool {
		return strings.HasPrefix(v, job.ListenVariable+"=") || strings.HasPrefix(v, job.ErrorFileVariable+"=")
	})
	return slices.Concat(env, p.Environ(), own, []string{sweepVariable + "=" + mark})
}

// token is the secret of an attempt. Launchers of several nodes need the same without having spoken: TANDEM_TOKEN, if it is set where
// they start, and else a number made of the job's name, which keeps other jobs out, but nobody who knows the name.
func token(c *Config) string {
	if c.Nodes == 1 {
		return randomHex(16)
	}
	if t := os.Getenv(job.TokenVariable); t != "" {
		return t
	}
	sum := sha256.Sum256([]byte("tandem job " + c.RunID))
	return hex.EncodeToString(sum[:16])
}
