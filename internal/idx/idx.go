// Package idx reads IDX files, the format of the MNIST digits, and finds MNIST.
//
// An IDX file is a header and then the elements, last dimension fastest. The
// header is two zero bytes, a byte for the element type, a byte for the number
// of dimensions, and each dimension as a big-endian uint32. Only unsigned bytes
// are read here: no MNIST-like data set uses another type. Files may be
// compressed with gzip, which is known by its first bytes, not by its name.
//
// [ReadFile] reads one file, [MNIST] the four of MNIST in a folder, and
// [ModuleDir] finds the folder that ships with a Go module. A damaged file is
// an error that names the file and says how many bytes it should have and has;
// a missing one is an fs.ErrNotExist that lists the names tried. No header makes
// the reader allocate more than the file can hold.
package idx

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// Array is the content of an IDX file: Dims[0] x Dims[1] x ... unsigned bytes,
// last dimension fastest.
type Array struct {
	Dims []int
	Data []byte // its length is the product of Dims
}

// maxDeflate is the most bytes that one byte of deflate data can stand for:
// matches of 258 bytes at two bits each.
const maxDeflate = 1032

// typeNames are the element types of the format, by their code in the header.
var typeNames = map[byte]string{
	0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64",
}

// ReadFile reads an IDX file, gzip or not.
func ReadFile(path string) (*Array, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("idx: %w", err)
	}
	a, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("idx: read %s: %w", path, err)
	}
	return a, nil
}

// Parse reads the content of an IDX file, gzip or not. The array of a plain
// file shares raw's memory.
func Parse(raw []byte) (*Array, error) {
	a, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("idx: %w", err)
	}
	return a, nil
}

func parse(raw []byte) (*Array, error) {
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		return parseGzip(raw)
	}
	r := bytes.NewReader(raw)
	dims, want, err := readHeader(r)
	if err != nil {
		return nil, err
	}
	data := raw[len(raw)-r.Len():]
	if uint64(len(data)) != want {
		return nil, sizeError(dims, want, uint64(len(data)))
	}
	return &Array{Dims: dims, Data: data}, nil
}

func parseGzip(raw []byte) (*Array, error) {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, gzipError(err)
	}
	dims, want, err := readHeader(z)
	if err != nil {
		return nil, err
	}
	if most := maxDeflate * uint64(len(raw)); want > most {
		return nil, fmt.Errorf("damaged header: it promises %s bytes of data, more than %d bytes of gzip can hold", product(dims, want), len(raw))
	}
	data := make([]byte, want)
	n, err := io.ReadFull(z, data)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, sizeError(dims, want, uint64(n))
	}
	if err != nil {
		return nil, gzipError(err)
	}
	// To the end: what is left over is counted, and the checksum is compared.
	rest, err := io.Copy(io.Discard, z)
	if err != nil {
		return nil, gzipError(err)
	}
	if rest > 0 {
		return nil, sizeError(dims, want, want+uint64(rest))
	}
	return &Array{Dims: dims, Data: data}, nil
}

// readHeader gives the dimensions and their product, the number of data bytes.
func readHeader(r io.Reader) (dims []int, size uint64, err error) {
	var magic [4]byte
	if err := readExactly(r, magic[:]); err != nil {
		return nil, 0, err
	}
	if magic[0] != 0 || magic[1] != 0 {
		return nil, 0, fmt.Errorf("not an IDX file: it begins with % x, want 00 00", magic[:2])
	}
	if magic[2] != 0x08 {
		name, ok := typeNames[magic[2]]
		if !ok {
			return nil, 0, fmt.Errorf("not an IDX file: unknown element type %#02x", magic[2])
		}
		return nil, 0, fmt.Errorf("elements are %s, only uint8 can be read", name)
	}
	if magic[3] == 0 {
		return nil, 0, errors.New("damaged header: no dimensions")
	}
	sizes := make([]byte, 4*int(magic[3]))
	if err := readExactly(r, sizes); err != nil {
		return nil, 0, err
	}
	dims, size = make([]int, magic[3]), 1
	for i := range dims {
		d := uint64(binary.BigEndian.Uint32(sizes[4*i:]))
		if d != 0 && size > math.MaxInt/d {
			return nil, 0, fmt.Errorf("damaged header: the product of %d dimensions overflows", len(dims))
		}
		dims[i] = int(d)
		size *= d
	}
	return dims, size, nil
}

// readExactly fills a part of the header.
func readExactly(r io.Reader, b []byte) error {
	n, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("truncated: the file ends %d bytes into a part of the header that has %d", n, len(b))
	}
	if err != nil {
		return gzipError(err)
	}
	return nil
}

func sizeError(dims []int, want, got uint64) error {
	what := "truncated"
	if got > want {
		what = fmt.Sprintf("%d bytes too many", got-want)
	}
	return fmt.Errorf("%s: the header promises %s bytes of data, the file has %d", what, product(dims, want), got)
}

func gzipError(err error) error {
	return fmt.Errorf("damaged gzip data: %w", err)
}

// product writes dimensions and their product, as in "60000x28x28 = 47040000".
func product(dims []int, size uint64) string {
	if len(dims) == 1 {
		return fmt.Sprint(size)
	}
	var b strings.Builder
	for i, d := range dims {
		if i > 0 {
			b.WriteByte('x')
		}
		fmt.Fprint(&b, d)
	}
	return fmt.Sprintf("%s = %d", b.String(), size)
}
