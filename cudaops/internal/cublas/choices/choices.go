// Package choices measures which of a library's algorithms is the fastest for an operation, and remembers it on disk.
//
// [Fastest] chooses, by what [Measure] says of each candidate on the card. A [Store] belongs to one library. Its entries map a key, which says the operation, the card and the library's version, to what the library
// needs to do it the same way again. Each is a file of its own, written whole or not at all. The first choice made for a key stays:
// [Store.Put] returns the one that is kept, so that ranks which measure at the same time go on with the same algorithm, and one run's bits
// are the next one's. An entry that is damaged or another key's is as good as none, and is replaced.
//
// Files lie in the folder tandem/algorithms of the user's cache directory; TANDEM_CACHE names another folder than tandem, or is "off". What
// cannot be remembered is not to be chosen by measuring, because the next run might choose otherwise: [Store.Ready] says so, and why is said
// once to the user.
package choices

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Variable names the folder of all that Tandem caches, or is "off".
const Variable = "TANDEM_CACHE"

// Store is a library's entries. It is safe for concurrent use, by several processes too.
type Store struct {
	dir  string // "" where nothing is remembered
	warn func(error)
}

// Open returns a library's store.
func Open(library string) *Store {
	s := &Store{warn: warnOnce}
	switch dir := os.Getenv(Variable); dir {
	case "":
		base, err := os.UserCacheDir()
		if err != nil {
			s.warn(err)
			return s
		}
		s.dir = filepath.Join(base, "tandem", "algorithms", library)
	case "off":
	default:
		s.dir = filepath.Join(dir, "algorithms", library)
	}
	return s
}

var warned sync.Once

func warnOnce(err error) {
	warned.Do(func() {
		fmt.Fprintf(os.Stderr, "tandem: the fastest algorithms are not looked for, because they cannot be remembered: %v; name a folder in %s, or switch this off with %[2]s=off\n", err, Variable)
	})
}

// Ready reports whether choices are remembered.
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

// Get returns a key's choice, and whether there is one.
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

// Put keeps a choice and returns the one that is kept: an earlier one, where there is one that usable accepts. ok is false where none can be.
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

// An entry is four lines: magic, the key in quotes, the value in hexadecimal, and the sum of these three lines.
const magic = "tandem algorithm 1"

func encode(key string, value []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%q\n%x\n", magic, key, value)
	fmt.Fprintf(&b, "%x\n", sha256.Sum256(b.Bytes()))
	return b.Bytes()
}

func decode(file []byte) (key string, value []byte, err error) {
	lines := strings.Split(string(file), "\n")
	if len(lines) != 5 || lines[0] != magic || lines[4] != "" {
		return "", nil, errors.New("not an algorithm")
	}
	body := len(file) - len(lines[3]) - 1
	if sum := sha256.Sum256(file[:body]); hex.EncodeToString(sum[:]) != lines[3] {
		return "", nil, errors.New("a damaged algorithm")
	}
	if key, err = strconv.Unquote(lines[1]); err != nil {
		return "", nil, err
	}
	value, err = hex.DecodeString(lines[2])
	return key, value, err
}
