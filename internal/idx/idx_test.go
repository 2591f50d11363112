package idx

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// encode writes an IDX file of unsigned bytes.
func encode(data []byte, dims ...uint32) []byte {
	b := []byte{0, 0, 0x08, byte(len(dims))}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, d)
	}
	return append(b, data...)
}

func compress(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestReadFile(t *testing.T) {
	plain := encode([]byte{1, 2, 3, 4, 5, 6}, 2, 3)
	zipped := compress(t, plain)
	badSum := bytes.Clone(zipped)
	badSum[len(badSum)-8] ^= 1
	const six = "the header promises 2x3 = 6 bytes of data, the file has "

	tests := []struct {
		name string
		raw  []byte
		want string // part of the error, "" for success
	}{
		{"plain", plain, ""},
		{"gzip", zipped, ""},
		{"empty", nil, "truncated: the file ends 0 bytes into a part of the header that has 4"},
		{"half a magic", plain[:2], "the file ends 2 bytes into"},
		{"half the dimensions", plain[:9], "the file ends 5 bytes into a part of the header that has 8"},
		{"no IDX", []byte("P5 28 28\n"), "not an IDX file: it begins with 50 35"},
		{"unknown type", []byte{0, 0, 0x0A, 1, 0, 0, 0, 0}, "unknown element type 0x0a"},
		{"floats", []byte{0, 0, 0x0D, 1, 0, 0, 0, 0}, "elements are float32, only uint8 can be read"},
		{"no dimensions", []byte{0, 0, 0x08, 0}, "no dimensions"},
		{"overflow", encode(nil, math.MaxUint32, math.MaxUint32, math.MaxUint32), "product of 3 dimensions overflows"},
		{"truncated", plain[:len(plain)-2], "truncated: " + six + "4"},
		{"trailing", append(bytes.Clone(plain), 7, 8, 9), "3 bytes too many: " + six + "9"},
		{"lying header", encode(nil, 1<<31), "truncated: the header promises 2147483648 bytes of data, the file has 0"},
		{"gzip truncated inside", compress(t, plain[:len(plain)-2]), "truncated: " + six + "4"},
		{"gzip trailing inside", compress(t, append(bytes.Clone(plain), 7)), "1 bytes too many: " + six + "7"},
		{"gzip lying header", compress(t, encode(nil, 1<<31)), "promises 2147483648 bytes of data, more than"},
		{"gzip truncated", zipped[:len(zipped)-4], "damaged gzip data: unexpected EOF"},
		{"gzip checksum", badSum, "damaged gzip data: gzip: invalid checksum"},
		{"gzip trailing", append(bytes.Clone(zipped), "rest"...), "damaged gzip data"},
		{"gzip header only", zipped[:5], "damaged gzip data"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "digits")
			write(t, path, tt.raw)
			a, err := ReadFile(path)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(a.Dims, []int{2, 3}) || !bytes.Equal(a.Data, []byte{1, 2, 3, 4, 5, 6}) {
					t.Errorf("got %+v", a)
				}
				return
			}
			if err == nil {
				t.Fatalf("no error, got %+v", a)
			}
			for _, part := range []string{"idx: read " + path, tt.want} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q has no %q", err, part)
				}
			}
		})
	}
}

func TestReadFileMissing(t *testing.T) {
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v is no fs.ErrNotExist", err)
	}
}

func write(t *testing.T, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o666); err != nil {
		t.Fatal(err)
	}
}

// Any bytes are an error or an array whose data fit its dimensions and were
// really in the file; an array survives being written and read again.
func FuzzParse(f *testing.F) {
	plain := encode([]byte{1, 2, 3, 4, 5, 6}, 2, 3)
	f.Add(plain)
	f.Add(plain[:11])
	f.Add(compress(f, plain))
	f.Add(compress(f, encode(make([]byte, 1000), 1000)))
	f.Add(encode(nil, 0, math.MaxUint32, math.MaxUint32))
	f.Add(encode(nil, 1<<31, 1<<31))
	f.Add([]byte{0, 0, 0x0B, 1, 0, 0, 0, 1, 2, 3})
	f.Add([]byte{0x1f, 0x8b, 8})
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := Parse(raw)
		if err != nil {
			return
		}
		size, dims := 1, make([]uint32, len(a.Dims))
		for i, d := range a.Dims {
			size *= d
			dims[i] = uint32(d)
		}
		if size != len(a.Data) {
			t.Fatalf("%d bytes of data for dimensions %v", len(a.Data), a.Dims)
		}
		again, err := Parse(compress(t, encode(a.Data, dims...)))
		if err != nil {
			t.Fatalf("read again: %v", err)
		}
		if !slices.Equal(a.Dims, again.Dims) || !bytes.Equal(a.Data, again.Data) {
			t.Fatal("read again: another array")
		}
	})
}
