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
// [Write] does all that for content at hand. Errors are those of package os, which name the file.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// File is a file that is not in its place yet.
type File struct {
	*os.File
	path string
	done bool
}

// Create makes a file, in the same folder as path, that Commit puts there.
func Create(path string) (*File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, err
	}
	return &File{File: f, path: path}, nil
}

// Commit puts the file in its place, readable for all as far as the folder is. On error it is discarded, and what was there stays.
func (f *File) Commit() error {
	err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close()) // temporary files are their owner's alone
	if err == nil {
		err = os.Rename(f.Name(), f.path)
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
	return errors.Join(err, os.Remove(f.Name()))
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
