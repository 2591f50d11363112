package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMain lets the test's binary be the command.
func TestMain(m *testing.M) {
	if os.Getenv("SHAREACARD_TEST") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestShare(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--processes", "3", "--steps", "2", "--batch", "64")
	cmd.Env = append(os.Environ(), "SHAREACARD_TEST=1", "TANDEM_SIM_CARDS=1x192MiB")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"[rank0]: step 2/2  batch 64 ", "[rank1]: step 2/2  batch 64 ", " of 64.00 MiB by SetPerProcessMemoryFraction (0.333333",
		"[rank2]: a batch of 12800 does not fit, one of ", "[rank2]: cudaops: CUDA out of memory on cuda:0", "[rank2]: step 2/2  batch 3200 ",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// TestNoCardIsVisible: one is simulated, also where the machine has some.
func TestNoCardIsVisible(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--processes", "1", "--steps", "1", "--batch", "1")
	cmd.Env = append(os.Environ(), "SHAREACARD_TEST=1", "TANDEM_SIM_CARDS=2", "CUDA_VISIBLE_DEVICES=")
	out, err := cmd.CombinedOutput()
	if want := "there is no card: one is simulated (TANDEM_SIM_CARDS=1x1GiB)\nstep 1/1  batch 200 "; err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%v, want %q\n%s", err, want, out)
	}
}

func TestFlags(t *testing.T) {
	got, err := parse([]string{"--processes", "8"})
	if want := (options{8, 100, 256, 0.125}); err != nil || !cmp.Equal(got, want, cmp.AllowUnexported(options{})) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, c := range []struct{ args, says string }{
		{"--processes 0", "--processes 0: give at least 1"},
		{"--steps -1", "--steps -1"},
		{"--batch x", "batch"},
		{"more", `"more"`},
	} {
		if _, err := parse(strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.args, err, c.says)
		}
	}
}
