package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// CacheVariable names the folder of all that Tandem caches, or is "off".
const CacheVariable = "TANDEM_CACHE"

// magic begins every entry; then come the checksum of the rest and the rest, the code.
const magic = "tandem kernels 1\n"

// cache keeps compiled code in a folder. One without a folder keeps nothing.
type cache struct {
	dir  string
	warn func(error) // a folder that cannot be used
}

func openCache() *cache {
	c := &cache{warn: warnOnce}
	switch dir := os.Getenv(CacheVariable); dir {
	case "":
		base, err := os.UserCacheDir()
		if err != nil {
			c.warn(err)
			return c
		}
		c.dir = filepath.Join(base, "tandem", "kernels")
	case "off":
	default:
		c.dir = filepath.Join(dir, "kernels")
	}
	return c
}

var warned sync.Once

func warnOnce(err error) {
	warned.Do(func() {
		fmt.Fprintf(os.Stderr, "tandem: compiled kernels are not kept, so that every start compiles them: %v; name a folder in %s, or switch this off with %[2]s=off\n", err, CacheVariable)
	})
}

// key is the name of the entry that depends on all parts.
func (c *cache) key(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n%s\n", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (c *cache) path(key string) string { return filepath.Join(c.dir, key+".bin") }

// get gives the code of an entry; ok is false where there is none that is whole.
func (c *cache) get(key string) (image []byte, ok bool) {
	if c.dir == "" {
		return nil, false
	}
	b, err := os.ReadFile(c.path(key))
	if err != nil {
		return nil, false // it is compiled anew, and put says what is wrong with the folder
	}
	return decode(b)
}

func encode(image []byte) []byte {
	sum := sha256.Sum256(image)
	return append(append([]byte(magic), sum[:]...), image...)
}

func decode(b []byte) (image []byte, ok bool) {
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok || len(rest) <= sha256.Size {
		return nil, false
	}
	image = rest[sha256.Size:]
	sum := sha256.Sum256(image)
	return image, bytes.Equal(sum[:], rest[:sha256.Size])
}

// put makes an entry, whole or not at all.
func (c *cache) put(key string, image []byte) {
	if c.dir == "" {
		return
	}
	if err := c.write(key, encode(image)); err != nil {
		c.warn(err)
	}
}

func (c *cache) write(key string, b []byte) (err error) {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(c.dir, key[:8]+"-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error is the one to tell
		}
	}()
	_, err = io.Copy(f, bytes.NewReader(b))
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), c.path(key))
}
