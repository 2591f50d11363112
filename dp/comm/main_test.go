package comm_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if name, ok := os.LookupEnv(workerVariable); ok {
		os.Exit(work(name))
	}
	goleak.VerifyTestMain(m)
}
