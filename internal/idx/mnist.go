package idx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// MNIST reads the four files of MNIST (or of a data set of the same form, such
// as Fashion-MNIST) from a folder: images of n x 28 x 28 and labels of n, each
// label 0..9, for training and for testing. The files have their usual names,
// train-images-idx3-ubyte and so on, with or without .gz, or with a dot in place
// of the dash before idx. That counts and labels agree is checked.
func MNIST(dir string) (trainX, trainY, testX, testY *Array, err error) {
	if trainX, trainY, err = readDigits(dir, "train"); err != nil {
		return nil, nil, nil, nil, err
	}
	if testX, testY, err = readDigits(dir, "t10k"); err != nil {
		return nil, nil, nil, nil, err
	}
	return trainX, trainY, testX, testY, nil
}

// readDigits reads the images and labels of one of MNIST's parts.
func readDigits(dir, part string) (images, labels *Array, err error) {
	imagePath, err := find(dir, part+"-images", "idx3-ubyte")
	if err != nil {
		return nil, nil, err
	}
	labelPath, err := find(dir, part+"-labels", "idx1-ubyte")
	if err != nil {
		return nil, nil, err
	}
	if images, err = ReadFile(imagePath); err != nil {
		return nil, nil, err
	}
	if labels, err = ReadFile(labelPath); err != nil {
		return nil, nil, err
	}
	if d := images.Dims; len(d) != 3 || d[0] == 0 || d[1] != 28 || d[2] != 28 {
		return nil, nil, fmt.Errorf("idx: read %s: dimensions %v, MNIST's images are n x 28 x 28", imagePath, d)
	}
	if d := labels.Dims; len(d) != 1 {
		return nil, nil, fmt.Errorf("idx: read %s: dimensions %v, MNIST's labels are n", labelPath, d)
	}
	if n, m := images.Dims[0], labels.Dims[0]; n != m {
		return nil, nil, fmt.Errorf("idx: %s has %d images but %s has %d labels: the files don't belong together", imagePath, n, labelPath, m)
	}
	for i, l := range labels.Data {
		if l > 9 {
			return nil, nil, fmt.Errorf("idx: read %s: label %d is %d, want 0..9", labelPath, i, l)
		}
	}
	return images, labels, nil
}

// find gives the first file of a folder that has one of a file's usual names.
func find(dir, base, kind string) (string, error) {
	names := []string{
		base + "-" + kind, base + "-" + kind + ".gz",
		base + "." + kind, base + "." + kind + ".gz",
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		switch {
		case err == nil && info.Mode().IsRegular():
			return path, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("idx: %w", err)
		}
	}
	return "", fmt.Errorf("idx: no file of MNIST's %s in %s: tried %s: %w", base, dir, strings.Join(names, ", "), fs.ErrNotExist)
}
