package nn

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/nlpodyssey/safetensors"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/atomicfile"
)

// SaveSafetensors writes the state dict of m to a file in the safetensors format, which PyTorch's users read with
// safetensors.torch.load_file. The file appears whole or not at all: an older one of that name stands until then.
func SaveSafetensors(m Module, path string) error {
	s, err := StateDict(m)
	if err != nil {
		return err
	}
	return s.Save(path)
}

// LoadSafetensors loads a file in the safetensors format into m, as [LoadStateDict] does.
func LoadSafetensors(m Module, path string, strict bool) error {
	s, err := ReadSafetensors(path)
	if err != nil {
		return err
	}
	if err := LoadStateDict(m, s, strict); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// view is a float32 tensor as the safetensors package takes it. Its bytes are made when they are asked for, in memory that all views of a file
// share: those of a large model are not there twice.
type view struct {
	shape []uint64
	x     []float32
	bytes *[]byte
}

func (v view) DType() safetensors.DType { return safetensors.F32 }
func (v view) Shape() []uint64          { return v.shape }
func (v view) DataLen() uint64          { return 4 * uint64(len(v.x)) }

// Data is valid until the next call of any view's.
func (v view) Data() []byte {
	b := slices.Grow((*v.bytes)[:0], 4*len(v.x))
	for _, e := range v.x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(e))
	}
	*v.bytes = b
	return b
}

// The names, in a file's metadata, of what says who may read it, and of the checksum of its tensors.
const (
	formatKey   = "format"
	checksumKey = "tandem.crc32c"
)

// checksum is that of metadata and of tensors, whose bytes at gives, each in the order of their names.
func checksum(metadata map[string]string, names []string, at func(name string) []byte) string {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	add := func(name string, x []byte) {
		fmt.Fprintf(sum, "%q %d ", name, len(x))
		sum.Write(x)
	}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if key != checksumKey {
			add(key, []byte(metadata[key]))
		}
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		add(name, at(name))
	}
	return fmt.Sprintf("%08x", sum.Sum32())
}

// Save writes s to a file in the safetensors format, whole or not at all. Tensors are written as float32, with a checksum, which
// [ReadSafetensors] compares.
func (s *State) Save(path string) error {
	views, shared := make(map[string]view, s.Len()), new([]byte)
	for name, t := range s.All() {
		if name == "__metadata__" || !utf8.ValidString(name) {
			return fmt.Errorf("nn: save %s: a file can't have a tensor called %q", path, name)
		}
		x, ok := floats(t)
		if !ok {
			return fmt.Errorf("nn: save %s: %s is of %v, which does not convert to float32", path, name, t.Dtype())
		}
		v := view{shape: make([]uint64, t.Dims()), x: x, bytes: shared}
		for i, d := range t.Shape() {
			v.shape[i] = uint64(d)
		}
		views[name] = v
	}
	metadata := map[string]string{}
	for key, value := range s.Metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return fmt.Errorf("nn: save %s: a file can't have the metadata %q: %q, which is no UTF-8", path, key, value)
		}
		metadata[key] = value
	}
	metadata[formatKey] = "pt"
	metadata[checksumKey] = checksum(metadata, s.names, func(name string) []byte { return views[name].Data() })
	if err := writeFile(path, views, metadata); err != nil {
		return fmt.Errorf("nn: save %s: %w", path, err)
	}
	return nil
}

func writeFile(path string, views map[string]view, metadata map[string]string) error {
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	err = safetensors.SerializeToWriter(views, metadata, w)
	if err == nil { // Flush gives an error of a write once more
		err = w.Flush()
	}
	if err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.Commit()
}

// ReadSafetensors reads a file in the safetensors format, its tensors in the order in which they lie in the file. Floats of
// 16, 32 and 64 bits and integers are converted to float32. A file that [State.Save] has written is read only if it is undamaged.
func ReadSafetensors(path string) (*State, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("nn: load: %w", err)
	}
	s, err := parseSafetensors(b)
	if err != nil {
		return nil, fmt.Errorf("nn: load %s: %w", path, err)
	}
	return s, nil
}

func parseSafetensors(b []byte) (*State, error) {
	st, err := safetensors.Deserialize(b)
	if err != nil {
		return nil, err
	}
	_, header, err := safetensors.ReadMetadata(b)
	if err != nil {
		return nil, err
	}
	s := &State{Metadata: maps.Clone(header.Metadata())}
	if want, ok := s.Metadata[checksumKey]; ok {
		have := checksum(s.Metadata, st.Names(), func(name string) []byte {
			t, _ := st.Tensor(name)
			return t.Data()
		})
		if have != want {
			return nil, fmt.Errorf("the file is damaged, or another program has changed it and kept its metadata: its checksum is %s, and was %s when it was written", have, want)
		}
	}
	for _, key := range []string{formatKey, checksumKey} { // which are the file's
		delete(s.Metadata, key)
	}
	for _, t := range st.Tensors() {
		v := t.TensorView
		x, ok := decode(v.DType(), v.Data())
		if !ok {
			return nil, fmt.Errorf("tensor %s: type %v does not convert to float32", t.Name, v.DType())
		}
		shape := make(tensor.Shape, len(v.Shape()))
		for i, d := range v.Shape() {
			if d < 1 || d > math.MaxInt32 {
				return nil, fmt.Errorf("tensor %s: shape %v: dimensions must be in 1..%d", t.Name, v.Shape(), math.MaxInt32)
			}
			shape[i] = int(d)
		}
		s.Set(t.Name, dense(shape, x))
	}
	return s, nil
}

// decode reads little-endian elements.
func decode(t safetensors.DType, b []byte) ([]float32, bool) {
	size := int(t.Size())
	x := make([]float32, len(b)/size)
	for i := range x {
		e := b[i*size:]
		switch t {
		case safetensors.F32:
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(e))
		case safetensors.F64:
			x[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(e)))
		case safetensors.BF16:
			x[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(e)) << 16)
		case safetensors.F16:
			x[i] = half(binary.LittleEndian.Uint16(e))
		case safetensors.I64:
			x[i] = float32(int64(binary.LittleEndian.Uint64(e)))
		case safetensors.I32:
			x[i] = float32(int32(binary.LittleEndian.Uint32(e)))
		case safetensors.U8:
			x[i] = float32(e[0])
		default:
			return nil, false
		}
	}
	return x, true
}

// half is the value of an IEEE 754 half-precision number: a sign, 5 bits of exponent, 10 of mantissa.
func half(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, man := uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 0: // zero and subnormal: man 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(man)*0x1p-24))
	case 31: // infinity and NaN
		return math.Float32frombits(sign | 0xff<<23 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}
