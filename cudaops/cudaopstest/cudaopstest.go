// Package cudaopstest gives tests the cards they want, in spite of package
// cudaops's reading its environment only once.
//
// The cards are the process's, so tests that use it can't be parallel; t.Setenv
// sees to that.
package cudaopstest

import (
	"os"
	"testing"

	_ "github.com/tandem-train/tandem/cudaops" // sets testhook.Reset
	"github.com/tandem-train/tandem/cudaops/internal/testhook"
)

// variables are those that package cudaops reads.
var variables = []string{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_LIMIT", "TANDEM_SIM_CARDS"}

// Setup makes the simulated cards of a TANDEM_SIM_CARDS value, such as 4x2GiB,
// and shows those of a CUDA_VISIBLE_DEVICES value. An empty argument leaves its
// variable unset: no cards, or all of them. Real cards that the machine may have
// are hidden. When the test ends, all is as it was before, and cards are made anew
// by whoever asks next.
//
// Memory that is still allocated then stays usable, and is the host's until the
// process ends.
func Setup(t testing.TB, simCards, visible string) {
	t.Helper()
	env := map[string]string{}
	if simCards != "" {
		env["TANDEM_SIM_CARDS"] = simCards
	}
	if visible != "" {
		env["CUDA_VISIBLE_DEVICES"] = visible
	}
	SetupEnv(t, env)
}

// SetupEnv is [Setup] with any values of the variables that package cudaops
// reads. Those not in env are unset.
func SetupEnv(t testing.TB, env map[string]string) {
	t.Helper()
	t.Cleanup(func() { testhook.Reset(false) }) // runs after t.Setenv has put the variables back
	for _, name := range variables {
		value, set := env[name]
		t.Setenv(name, value)
		if set {
			continue
		}
		if err := os.Unsetenv(name); err != nil {
			t.Fatalf("cudaopstest: unset %s: %v", name, err)
		}
	}
	testhook.Reset(true)
}
