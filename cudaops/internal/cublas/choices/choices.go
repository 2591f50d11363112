// Package choices measures which of a library's algorithms is the fastest for an operation, and remembers it on disk.
//
// [Fastest] chooses, by what [Measure] says of each candidate on the card. A [Store] belongs to one library. Its entries map a key, which says the operation, the card and the library's version, to what the library
// needs to do it the same way again. Each is a file of its own, written whole or not at all. The first choice made for a key stays:
// [Store.Put] returns the one that is kept, so that ranks which measure at the same time go on with the same algorithm, and one run's bits
// are the next one's. An entry that is damaged or another key's is as good as none, and is replaced.
//
// Files lie in the folder that TANDEM_CACHE names, or in the user's cache directory; with TANDEM_CACHE=off nothing is remembered, and [Open]
// returns nil, which is a store that has nothing and keeps nothing.
package choices

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Variable names the folder of all that is cached, or is off.
const Variable = "TANDEM_CACHE"

// ErrOff is the error of putting a choice where nothing is remembered.
var ErrOff = errors.New("nothing is remembered, by " + Variable)

// Store is a library's entries. It is safe for concurrent use, by several processes too.
type Store struct{ dir string }

// Open returns a library's store, which is nil when nothing is to be remembered.
func Open(library string) (*Store, error) {
	dir := os.Getenv(Variable)
	if dir == "off" {
		return nil, nil
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("choices: no folder to remember algorithms in: %w; name one in %s", err, Variable)
		}
		dir = filepath.Join(user, "tandem")
	}
	return &Store{dir: filepath.Join(dir, "algorithms", library)}, nil
}

// Get returns a key's choice, and whether there is one.
func (s *Store) Get(key string) ([]byte, bool) {
	if s == nil {
		return nil, false
	}
	file, err := os.ReadFile(s.path(key))
	if err != nil {
		return nil, false // and Put says why there is none
	}
	found, value, err := decode(file)
	return value, err == nil && found == key
}

// Put keeps a choice and returns the one that is kept: an earlier one, where there is one that usable accepts.
func (s *Store) Put(key string, value []byte, usable func([]byte) bool) ([]byte, error) {
	if s == nil {
		return nil, ErrOff
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("choices: %w", err)
	}
	f, err := os.CreateTemp(s.dir, "new-*")
	if err != nil {
		return nil, fmt.Errorf("choices: %w", err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is gone where it was renamed
	_, err = f.Write(encode(key, value))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("choices: %w", err)
	}
	// A link fails where the name exists: of those that come at the same time, one is first.
	err = os.Link(f.Name(), s.path(key))
	if errors.Is(err, fs.ErrExist) {
		if kept, ok := s.Get(key); ok && usable(kept) {
			return kept, nil
		}
		err = os.Rename(f.Name(), s.path(key))
	}
	if err != nil {
		return nil, fmt.Errorf("choices: %w", err)
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
