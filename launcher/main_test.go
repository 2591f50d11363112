//go:build linux

package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-train/tandem/internal/job"
)

// roleVariable says what this test binary is when a test starts it again.
const roleVariable = "TANDEM_TEST_ROLE"

func TestMain(m *testing.M) {
	Register("hello", func(ctx context.Context, rank int) error {
		if job.Told() != ctx {
			return errors.New("training does not know what ends this process")
		}
		fmt.Println("hello from", rank)
		return nil
	})
	Register("error", func(ctx context.Context, rank int) error {
		if rank == 1 {
			return errors.New("no more data\nin the second line")
		}
		<-ctx.Done()
		return nil
	})
	Register("panic", func(ctx context.Context, rank int) error {
		if rank == 1 {
			var none []int
			return fmt.Errorf("element %d", none[rank])
		}
		<-ctx.Done()
		return ctx.Err()
	})
	Register("consequence", failTogether)
	Register("nested", func(ctx context.Context, rank int) error { return Spawn(ctx, 2, "hello") })
	Init()
	switch role := os.Getenv(roleVariable); role {
	case "":
		if os.Getenv("GORACE") == "" {
			os.Setenv("GORACE", "atexit_sleep_ms=0") // or every puppet of a race detector's build takes a second to end
		}
		goleak.VerifyTestMain(m)
	case "launcher":
		os.Exit(launcherMain())
	default:
		os.Exit(puppetMain(role))
	}
}
