package cudaops_test

import (
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/fakecuda"
)

func TestMain(m *testing.M) { fakecuda.Main(m) }
