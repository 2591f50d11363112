package cudaops_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
)

// Tests on a real card, against what nvidia-smi and PyTorch say of it in the same run. Elsewhere they are skipped.

// taskVariable is what a process that a test has started from this binary does; it stands for variables that a process reads once.
const taskVariable = "TANDEM_CUDAOPS_TASK"

func needCard(t *testing.T) {
	t.Helper()
	if _, err := cuda.Load(); err != nil {
		t.Skipf("no card: %v", err)
	}
	if os.Getenv("TANDEM_SIM_CARDS") != "" {
		t.Skip("TANDEM_SIM_CARDS takes the place of cards")
	}
}

// task is this test again, in a process that does a task.
func task(t *testing.T, name string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestTask$")
	cmd.Env = append(os.Environ(), append(env, taskVariable+"="+name)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestTask is what processes do that other tests start.
func TestTask(t *testing.T) {
	switch os.Getenv(taskVariable) {
	case "list": // print the UUIDs of the cards
		devices, err := cudaops.AvailableDevices()
		if err != nil {
			t.Fatal(err)
		}
		uuids := []string{}
		for _, d := range devices {
			uuids = append(uuids, d.UUID)
		}
		text, err := json.Marshal(uuids)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s\n", text)
	case "hold": // a GiB until the end of the input
		m := alloc(t, 0, 1<<30)
		fmt.Println("holding")
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			t.Fatal(err)
		}
		free(t, m)
	default:
		t.Skip("for processes that other tests start")
	}
}

// smi asks nvidia-smi, and gives the fields of each line of its answer.
func smi(t *testing.T, query string) [][]string {
	t.Helper()
	out, err := exec.Command("nvidia-smi", query, "--format=csv,noheader,nounits").Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no nvidia-smi")
	}
	if err != nil {
		t.Fatalf("nvidia-smi %s: %v", query, err)
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimSpace(line), ", "))
	}
	return rows
}

// heldBySMI is what nvidia-smi shows of this process, in MiB.
func heldBySMI(t *testing.T) int64 {
	t.Helper()
	sum := int64(0)
	for _, row := range smi(t, "--query-compute-apps=pid,used_memory") {
		if row[0] != strconv.Itoa(os.Getpid()) {
			continue
		}
		n, err := strconv.ParseInt(row[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func TestCardAgainstSMI(t *testing.T) {
	needCard(t)
	devices, err := cudaops.AvailableDevices()
	if err != nil {
		t.Fatal(err)
	}
	rows := smi(t, "--query-gpu=index,name,uuid,memory.total,compute_cap")
	for _, d := range devices {
		i := slices.IndexFunc(rows, func(row []string) bool { return row[2] == d.UUID })
		if i < 0 {
			t.Errorf("%+v: not among %v", d, rows)
			continue
		}
		major, minor, err := cudaops.DeviceCapability(d.Logical)
		if err != nil {
			t.Fatal(err)
		}
		total, err := strconv.ParseInt(rows[i][3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		// nvidia-smi counts what the driver keeps for itself, too.
		mine := d.Memory / mib
		if strconv.Itoa(d.Physical) != rows[i][0] || d.Name != rows[i][1] || fmt.Sprintf("%d.%d", major, minor) != rows[i][4] || mine > total || mine < total*98/100 {
			t.Errorf("%+v, capability %d.%d: nvidia-smi says %v", d, major, minor, rows[i])
		}
	}
}

// torchCards prints, for each line of its input ("unset", or a value of CUDA_VISIBLE_DEVICES after a "="), how many cards PyTorch gets
// from the driver, and the UUIDs of those that it shows. These may be fewer: its device_count reads the variable by rules of its own.
const torchCards = `
import json, os, sys
try:
    import torch
except ImportError:
    print("no torch"); sys.exit()
for line in sys.stdin.read().splitlines():
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if line != "unset":
            os.environ["CUDA_VISIBLE_DEVICES"] = line[1:]
        seen, uuids = 0, []
        try:
            torch.cuda.init()
            seen = torch._C._cuda_getDeviceCount()
            uuids = ["GPU-" + str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
        except RuntimeError:
            pass
        print(json.dumps({"seen": seen, "uuids": uuids}), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
`

func TestCardVisibilityAgainstTorch(t *testing.T) {
	needCard(t)
	uuid := smi(t, "--query-gpu=uuid")[0][0]
	settings := []string{"unset"}
	for _, value := range []string{
		"", "0", "1", "-1", "0,-1", "0,0", "0,1,0", " 0", "0 ", "00", "+0", "0x1", "0;1", ",0", "0,", "none", "NoDevFiles", "4294967296", "99999999999",
		uuid, uuid[:9], "GPU-", "GPU-" + strings.ToUpper(uuid[4:]), strings.TrimPrefix(uuid, "GPU-"), "0," + uuid, uuid + ",0", uuid + "," + uuid,
	} {
		settings = append(settings, "="+value)
	}
	cmd := exec.Command("python3", "-c", torchCards)
	cmd.Stdin = strings.NewReader(strings.Join(settings, "\n"))
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) || strings.HasPrefix(string(out), "no torch") {
		t.Skip("no PyTorch")
	}
	torch := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(torch) != len(settings) {
		t.Fatalf("PyTorch: %v:\n%s", err, out)
	}
	for i, setting := range settings {
		list := task(t, "list", "CUDA_VISIBLE_DEVICES"+setting)
		if setting == "unset" {
			list.Env = slices.DeleteFunc(list.Env, func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES") })
		}
		out, err := list.Output()
		if err != nil {
			t.Errorf("%q: %v:\n%s", setting, err, out)
			continue
		}
		var ours []string
		var theirs struct {
			Seen  int
			UUIDs []string
		}
		first, _, _ := strings.Cut(string(out), "\n")
		if err := errors.Join(json.Unmarshal([]byte(first), &ours), json.Unmarshal([]byte(torch[i]), &theirs)); err != nil {
			t.Errorf("%q: %q and %q: %v", setting, first, torch[i], err)
			continue
		}
		if len(ours) != theirs.Seen {
			t.Errorf("%q: %d cards, PyTorch gets %d from the driver", setting, len(ours), theirs.Seen)
		}
		if len(theirs.UUIDs) != theirs.Seen {
			t.Logf("%q: %d cards; PyTorch gets as many from the driver and shows %d", setting, len(ours), len(theirs.UUIDs))
		} else if diff := cmp.Diff(theirs.UUIDs, ours); diff != "" {
			t.Errorf("%q (-PyTorch +ours):\n%s", setting, diff)
		}
	}
}

// TestCardCap: nvidia-smi never shows the process above its cap; after the error it goes on with less.
func TestCardCap(t *testing.T) {
	needCard(t)
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	const fraction = 0.1
	if err := cudaops.SetPerProcessMemoryFraction(fraction, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cudaops.SetPerProcessMemoryFraction(1, 0); err != nil {
			t.Error(err)
		}
	}()
	limit, err := cudaops.MemoryLimit(0)
	if err != nil {
		t.Fatal(err)
	}
	below := func() int64 {
		n := heldBySMI(t)
		if n*mib > limit.Bytes {
			t.Errorf("nvidia-smi shows %d MiB, above the cap of %d MiB", n, limit.Bytes/mib)
		}
		return n
	}
	var held []*cudaops.Memory
	var full *cudaops.OutOfMemoryError
	for full == nil {
		m, err := cudaops.Alloc(0, 700*mib)
		if err != nil && !errors.As(err, &full) {
			t.Fatal(err)
		}
		if err == nil {
			held = append(held, m)
		}
		below()
	}
	t.Logf("%d MiB by nvidia-smi; %v", below(), full)
	if full.Overhead < 100*mib || full.Largest <= 0 || full.Largest >= 700*mib {
		t.Errorf("%+v", full)
	}
	last := alloc(t, 0, full.Largest)
	if n := below(); n < limit.Bytes/mib-36 { // 32 are kept for the driver
		t.Errorf("nvidia-smi shows %d MiB, and the cap of %d MiB is used up", n, limit.Bytes/mib)
	}
	free(t, last)
	free(t, held[0])
	free(t, alloc(t, 0, 300*mib))
	for _, m := range held[1:] {
		free(t, m)
	}
	if err := cudaops.EmptyCache(); err != nil {
		t.Fatal(err)
	}
	if n := below(); n*mib > full.Overhead+8*mib {
		t.Errorf("nvidia-smi shows %d MiB, and all but %d MiB were given back", n, full.Overhead/mib)
	}
}

// TestCardOthers: who else is on the card is told, with number and name.
func TestCardOthers(t *testing.T) {
	needCard(t)
	other := task(t, "hold")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holding\n" {
		t.Errorf("%q, %v", line, err)
	}
	e := wantOOM(t, 0, 1<<50)
	i := slices.IndexFunc(e.Others, func(p cudaops.ProcessMemory) bool { return p.PID == other.Process.Pid })
	if i < 0 || e.Others[i].Bytes < 1<<30 || !strings.Contains(e.Others[i].Name, "cudaops") {
		t.Errorf("others %+v, without the %d that holds a GiB", e.Others, other.Process.Pid)
	}
	if slices.ContainsFunc(e.Others, func(p cudaops.ProcessMemory) bool { return p.PID == os.Getpid() }) {
		t.Errorf("this process is among the others: %+v", e.Others)
	}
	if err := errors.Join(in.Close(), other.Wait()); err != nil {
		t.Error(err)
	}
}

func TestCardTransfers(t *testing.T) {
	needCard(t)
	const size = 256*mib + 3
	want, got := make([]byte, size), make([]byte, size)
	source := rand.NewChaCha8([32]byte(fmt.Appendf(nil, "%032d", rand.Uint64())))
	r := rand.New(source)
	_, _ = source.Read(want) // never fails
	m := alloc(t, 0, size)
	defer free(t, m)
	for range 4 {
		start := time.Now()
		if err := errors.Join(m.Write(0, want), cudaops.Synchronize(0)); err != nil {
			t.Fatal(err)
		}
		written := time.Now()
		clear(got)
		cleared := time.Now()
		if err := m.Read(0, got); err != nil {
			t.Fatal(err)
		}
		t.Logf("written at %.1f GB/s, read at %.1f GB/s", size/1e9/written.Sub(start).Seconds(), size/1e9/time.Since(cleared).Seconds())
		if !bytes.Equal(got, want) {
			t.Fatal("what was read is not what was written")
		}
	}
	for range 100 {
		n := r.IntN(3*mib) + 1
		off := r.IntN(size - n)
		if err := errors.Join(m.Write(int64(off), got[:n]), m.Read(int64(off), got[n:][:n])); err != nil || !bytes.Equal(got[:n], got[n:][:n]) {
			t.Fatalf("%d bytes at %d: not what was written, %v", n, off, err)
		}
	}
}
