package tensorboard

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

// scalar is a number as a reader finds it.
type scalar struct {
	Tag   string  `json:"tag"`
	Step  int64   `json:"step"`
	Value float64 `json:"value"`
	Time  float64 `json:"time"`
}

// events cuts a file into its events, whose checksums it looks at.
func events(t *testing.T, path string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for len(b) > 0 {
		if len(b) < 16 {
			t.Fatalf("%d bytes behind the last event", len(b))
		}
		n := binary.LittleEndian.Uint64(b)
		if masked(b[:8]) != binary.LittleEndian.Uint32(b[8:]) || n > uint64(len(b)-16) {
			t.Fatalf("event %d: length %d or its checksum is wrong", len(all), n)
		}
		event := b[12:][:n]
		if masked(event) != binary.LittleEndian.Uint32(b[12+n:]) {
			t.Fatalf("event %d: the checksum is wrong", len(all))
		}
		all, b = append(all, event), b[16+n:]
	}
	return all
}

// fields are the fields of a message, of which each is there once.
func fields(t *testing.T, b []byte) map[protowire.Number][]byte {
	t.Helper()
	all := map[protowire.Number][]byte{}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		m := protowire.ConsumeFieldValue(number, kind, b[n:])
		if m < 0 || all[number] != nil {
			t.Fatalf("field %d: %v", number, protowire.ParseError(m))
		}
		all[number], b = b[n:n+m], b[n+m:]
	}
	return all
}

func bytesOf(b []byte) []byte {
	v, _ := protowire.ConsumeBytes(b)
	return v
}

// read gives the numbers of a file.
func read(t *testing.T, path string) []scalar {
	t.Helper()
	var all []scalar
	for i, e := range events(t, path) {
		event := fields(t, e)
		if i == 0 {
			if got := string(bytesOf(event[eventFileVersion])); got != "brain.Event:2" {
				t.Errorf("version %q", got)
			}
			continue
		}
		value := fields(t, bytesOf(fields(t, bytesOf(event[eventSummary]))[summaryValue]))
		step, _ := protowire.ConsumeVarint(event[eventStep])
		all = append(all, scalar{
			Tag: string(bytesOf(value[valueTag])), Step: int64(step),
			Value: float64(math.Float32frombits(binary.LittleEndian.Uint32(value[valueSimple]))),
			Time:  math.Float64frombits(binary.LittleEndian.Uint64(event[eventWallTime])),
		})
	}
	return all
}

func create(t *testing.T, folder string) *Writer {
	t.Helper()
	w, err := Create(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// written are numbers as they come back: of float32.
var written = []scalar{
	{Tag: "loss/train", Step: 0, Value: 2.5}, {Tag: "loss/train", Step: 1, Value: 0.125}, {Tag: "accuracy/test", Step: 1 << 40, Value: -1},
	{Tag: "memory/é", Step: 7, Value: 1 << 37}, {Tag: "small", Step: 8, Value: 0x1p-140},
}

func writeAll(t *testing.T, folder string) *Writer {
	t.Helper()
	w := create(t, folder)
	for _, s := range written {
		if err := w.Scalar(s.Tag, int(s.Step), s.Value); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// compare wants what was written, and times of now.
func compare(t *testing.T, got []scalar) {
	t.Helper()
	for i := range got {
		if age := float64(time.Now().UnixNano())/1e9 - got[i].Time; age < 0 || age > 60 {
			t.Errorf("event %d is %v seconds old", i, age)
		}
		got[i].Time = 0
	}
	if diff := cmp.Diff(written, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestScalars(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "runs", "first")
	w := writeAll(t, folder)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	compare(t, read(t, w.Name()))
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := w.Scalar("late", 1, 1); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "late of step 1") {
		t.Errorf("after Close: %v", err)
	}
	if err := w.Flush(); !errors.Is(err, ErrClosed) {
		t.Errorf("flush after Close: %v", err)
	}
	if other := create(t, folder); other.Name() == w.Name() || filepath.Dir(other.Name()) != folder || !strings.Contains(other.Name(), "tfevents") {
		t.Errorf("files %s and %s", w.Name(), other.Name())
	}
}

// TestFirstBytes are those that every event file begins with: a length of 24 with its checksum, and up to the time.
func TestFirstBytes(t *testing.T) {
	w := create(t, t.TempDir())
	b, err := os.ReadFile(w.Name())
	if err != nil {
		t.Fatal(err)
	}
	const start = "\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7f\x4b\x22\x09"
	if len(b) != 40 || string(b[:13]) != start || string(b[21:36]) != "\x1a\x0dbrain.Event:2" {
		t.Errorf("% x", b)
	}
}

// TestSameBytesAsPyTorch: its SummaryWriter wrote testdata/torch.tfevents, by the script beside it. Only the first events differ, as PyTorch's
// also names the writer.
func TestSameBytesAsPyTorch(t *testing.T) {
	const file = "testdata/torch.tfevents"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first := events(t, file)[0]
	if got := string(bytesOf(fields(t, first)[eventFileVersion])); got != fileVersion {
		t.Errorf("its version is %q", got)
	}
	at := func(seconds float64) time.Time { return time.UnixMilli(int64(seconds * 1e3)) }
	var ours []byte
	for step, value := range []float64{2.5, 1.25, 0.1} {
		ours = appendRecord(ours, appendScalar(nil, at(1700000000.5+float64(step)), "loss/train", step, value))
	}
	ours = appendRecord(ours, appendScalar(nil, at(1700000004), "negative", math.MaxInt32, -1e-30))
	if diff := cmp.Diff(b[len(appendRecord(nil, first)):], ours); diff != "" {
		t.Errorf("(-PyTorch +ours):\n%s", diff)
	}
}

// TestChecksum is RFC 3720's examples of CRC-32C, masked.
func TestChecksum(t *testing.T) {
	for text, crc := range map[string]uint32{strings.Repeat("\x00", 32): 0x8a9136aa, strings.Repeat("\xff", 32): 0x62a8ab43} {
		if want := (crc>>15 | crc<<17) + 0xa282ead8; masked([]byte(text)) != want {
			t.Errorf("%q: %#x, want %#x", text, masked([]byte(text)), want)
		}
	}
}

// TestSeenWhileWriting: what was written comes to the file without Flush, a while later.
func TestSeenWhileWriting(t *testing.T) {
	w := create(t, t.TempDir())
	w.flushed = time.Now().Add(time.Hour)
	for step := range 2 {
		if err := w.Scalar("loss", step, 1); err != nil {
			t.Fatal(err)
		}
		if n := len(read(t, w.Name())); n != 2*step {
			t.Errorf("after step %d the file has %d numbers", step, n)
		}
		w.flushed = time.Now().Add(-patience)
	}
}

func TestWriteAtOnce(t *testing.T) {
	w := create(t, t.TempDir())
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for step := range 100 {
				if err := w.Scalar(string(rune('a'+g)), step, float64(step)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	next := map[string]int64{}
	for _, s := range read(t, w.Name()) {
		if s.Step != next[s.Tag] || s.Value != float64(s.Step) {
			t.Errorf("%+v, want step %d", s, next[s.Tag])
		}
		next[s.Tag]++
	}
	if len(next) != 4 {
		t.Errorf("tags %v", next)
	}
}

func TestErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a folder that is a file: %v", err)
	}
	w := create(t, t.TempDir())
	if err := w.file.Close(); err != nil {
		t.Fatal(err)
	}
	w.flushed = time.Time{}
	if err := w.Scalar("loss", 1, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a file that can't be written: %v", err)
	}
	if err := w.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closing it: %v", err)
	}
}

// reader prints, as JSON, what TensorBoard's own reader finds in a folder.
const reader = `
import json, sys
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util
out = []
for event in EventFileLoader(sys.argv[1]).Load():
    for v in event.summary.value:
        number = v.simple_value if v.HasField("simple_value") else float(tensor_util.make_ndarray(v.tensor))
        out.append({"tag": v.tag, "step": event.step, "value": float(number), "time": event.wall_time})
print(json.dumps(out))
`

// TestTensorBoardReads what this package has written, where Python has TensorBoard.
func TestTensorBoardReads(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", "import tensorboard").CombinedOutput(); err != nil {
		t.Skipf("Python has no TensorBoard here: %v\n%s", err, out)
	}
	w := writeAll(t, t.TempDir())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", reader, w.Name())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []scalar
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compare(t, got)
}
