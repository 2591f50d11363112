// Package atomicfile writes files so that whoever reads them finds the old one or the new one, whole, even where the machine loses its power
// in between: beside the place, then onto the disk, then by a rename.
//
//	f, err := atomicfile.Create(path)
//	if err != nil {
//		return err
//	}
//	defer f.Discard()
//	... write to f ...
//	return f.Commit()
//
// On Linux, where the file system can do it, a file has no name while it is written, so that nothing of it stays when the process is killed.
//
// [Write] does all that for content at hand. Errors are those of package os, which name the file.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
)

// File is a file that is not in its place yet.
type File struct {
	*os.File
	path string
	temp string // its name until it is in its place; "": none yet
	done bool
}

// Create makes a file, in the same folder as path, that Commit puts there, with the permissions of what was there before. A symbolic link stays one,
// to a new file. What is no regular file, such as a device, is not replaced.
func Create(path string) (*File, error) {
	path = place(path)
	old, err := os.Stat(path)
	switch {
	case err == nil && !old.Mode().IsRegular():
		return nil, &fs.PathError{Op: "replace", Path: path, Err: fmt.Errorf("it is there and no regular file (%s): name another", old.Mode())}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	f := &File{path: path}
	if f.File = nameless(path); f.File == nil {
		f.temp = f.beside()
		if f.File, err = os.OpenFile(f.temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666); err != nil {
			return nil, err
		}
	}
	if old == nil {
		return f, nil
	}
	if err := f.Chmod(old.Mode().Perm()); err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// beside is a name for the file until it is in its place.
func (f *File) beside() string {
	return filepath.Join(filepath.Dir(f.path), fmt.Sprintf(".%s-%d", filepath.Base(f.path), rand.Uint64()))
}

// place is where a path leads by symbolic links. There may be nothing yet.
func place(path string) string {
	for range 40 { // which Linux follows
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Dir(path) + string(filepath.Separator) + to
		}
		path = to
	}
	return path
}

// Commit puts the file in its place. On error it is discarded, and what was there stays.
func (f *File) Commit() error {
	err := f.Sync()
	if err == nil && f.temp == "" {
		temp := f.beside()
		if err = name(f.File, temp); err == nil {
			f.temp = temp
		}
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.temp, f.path)
	}
	if err != nil {
		return errors.Join(err, f.Discard())
	}
	f.done = true
	return syncFolder(filepath.Dir(f.path))
}

// Discard closes and removes the file, unless it was committed or discarded before.
func (f *File) Discard() error {
	if f.done {
		return nil
	}
	f.done = true
	err := f.Close()
	if errors.Is(err, fs.ErrClosed) {
		err = nil
	}
	if f.temp == "" {
		return err
	}
	return errors.Join(err, os.Remove(f.temp))
}

// syncFolder makes sure that a rename is on the disk. Windows has no such thing.
func syncFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Write puts content at path.
func Write(path string, content []byte) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.Commit()
}

// Check finds out whether the folder of path can take a file.
func Check(path string) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.Discard()
}
