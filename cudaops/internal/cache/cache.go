// Package cache keeps on disk what takes time to find out: the code of kernels, and which of a library's algorithms is the fastest.
//
// A [Store] is a folder. Its entries map a key, which says everything that the value depends on, to the value. Each is a file of its own,
// written whole or not at all, with its key and a checksum: one that is damaged or another key's is as good as none, and is replaced. The first
// value put for a key stays, [Store.Put] returns the one that is kept, so that ranks which find out at the same time go on with the same.
//
// Stores lie in the folder tandem of the user's cache directory; TANDEM_CACHE names another folder, or is "off". Deleting files is always
// safe. A folder that cannot be written to is no error: what that costs is said once on standard error.
package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// Variable names the folder of all stores, or is "off".
const Variable = "TANDEM_CACHE"

// Store is safe for concurrent use, by several processes too.
type Store struct {
	dir  string // "" where nothing is kept
	warn func(error)
}

// Open returns the store in a folder of that name, with slashes. loss says what follows where nothing can be kept.
func Open(name, loss string) *Store {
	warn := func(err error) { warnOnce(loss, err) }
	dir := os.Getenv(Variable)
	switch dir {
	case "":
		base, err := os.UserCacheDir()
		if err != nil {
			warn(err)
			return At("", warn)
		}
		dir = filepath.Join(base, "tandem")
	case "off":
		return At("", warn)
	}
	return At(filepath.Join(dir, filepath.FromSlash(name)), warn)
}

// At returns the store in a folder, or one that keeps nothing for none. warn gets the errors of a folder that cannot be used.
func At(dir string, warn func(error)) *Store { return &Store{dir, warn} }

// warned has what was said already.
var warned sync.Map

func warnOnce(loss string, err error) {
	if _, said := warned.LoadOrStore(loss, true); !said {
		fmt.Fprintf(os.Stderr, "tandem: %s: %v; name a folder in %s, or switch this off with %[3]s=off\n", loss, err, Variable)
	}
}

// Ready reports whether values are kept.
func (s *Store) Ready() bool {
	if s.dir == "" {
		return false
	}
	f, err := s.create()
	if err != nil {
		s.warn(err)
		return false
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		s.warn(err)
	}
	return true
}

// create makes a new file in the folder.
func (s *Store) create() (*os.File, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	return os.CreateTemp(s.dir, "new-*")
}

// Get returns a key's value, and whether there is one.
func (s *Store) Get(key string) ([]byte, bool) {
	if s.dir == "" {
		return nil, false
	}
	file, err := os.ReadFile(s.path(key))
	if err != nil {
		return nil, false // and Ready or Put says what is wrong with the folder
	}
	found, value, err := decode(file)
	return value, err == nil && found == key
}

// Put keeps a value and returns the one that is kept: an earlier one, where there is one that usable accepts. ok is false where none can be.
func (s *Store) Put(key string, value []byte, usable func([]byte) bool) (kept []byte, ok bool) {
	if s.dir == "" {
		return nil, false
	}
	kept, err := s.put(key, value, usable)
	if err != nil {
		s.warn(err)
	}
	return kept, err == nil
}

func (s *Store) put(key string, value []byte, usable func([]byte) bool) ([]byte, error) {
	f, err := s.create()
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is gone where it was renamed
	_, err = f.Write(encode(key, value))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	// A link fails where the name exists, so that of those who come at the same time one is first; and in file systems that have no links.
	if err := os.Link(f.Name(), s.path(key)); err != nil {
		if kept, ok := s.Get(key); ok && usable(kept) {
			return kept, nil
		}
		return value, os.Rename(f.Name(), s.path(key))
	}
	return value, nil
}

// path is the file of a key.
func (s *Store) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16]))
}

// An entry is two lines, magic and the key in quotes, then the sum of all else, and the value.
const magic = "tandem cache 1"

func encode(key string, value []byte) []byte {
	head := fmt.Appendf(nil, "%s\n%q\n", magic, key)
	sum := sha256.Sum256(append(bytes.Clone(head), value...))
	return append(append(head, sum[:]...), value...)
}

func decode(file []byte) (key string, value []byte, err error) {
	first, rest, _ := bytes.Cut(file, []byte("\n"))
	quoted, rest, ok := bytes.Cut(rest, []byte("\n"))
	if string(first) != magic || !ok || len(rest) < sha256.Size {
		return "", nil, errors.New("not an entry")
	}
	value = rest[sha256.Size:]
	head := file[:len(file)-len(rest)]
	if sum := sha256.Sum256(append(bytes.Clone(head), value...)); !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return "", nil, errors.New("a damaged entry")
	}
	key, err = strconv.Unquote(string(quoted))
	return key, value, err
}
