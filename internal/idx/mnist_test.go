package idx

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The real digits: their numbers, and statistics known to everybody who ever
// normalised them.
func TestRealMNIST(t *testing.T) {
	dir, err := ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	trainX, trainY, testX, testY, err := MNIST(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		x, y   *Array
		n      int
		counts [10]int
	}{
		{"train", trainX, trainY, 60000, [10]int{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}},
		{"test", testX, testY, 10000, [10]int{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}},
	} {
		if !slices.Equal(tt.x.Dims, []int{tt.n, 28, 28}) || !slices.Equal(tt.y.Dims, []int{tt.n}) {
			t.Errorf("%s: dimensions %v and %v", tt.name, tt.x.Dims, tt.y.Dims)
		}
		var counts [10]int
		for _, l := range tt.y.Data {
			counts[l]++
		}
		if counts != tt.counts {
			t.Errorf("%s: digits %v, want %v", tt.name, counts, tt.counts)
		}
	}
	var sum, squares float64
	for _, p := range trainX.Data {
		v := float64(p) / 255
		sum += v
		squares += v * v
	}
	n := float64(len(trainX.Data))
	mean := sum / n
	if sd := math.Sqrt(squares/n - mean*mean); math.Abs(mean-0.1307) > 1e-4 || math.Abs(sd-0.3081) > 1e-4 {
		t.Errorf("pixels have mean %v and standard deviation %v, want 0.1307 and 0.3081", mean, sd)
	}
}

// smallMNIST is a folder's content with three training and two test digits.
func smallMNIST() map[string][]byte {
	return map[string][]byte{
		"train-images-idx3-ubyte": encode(make([]byte, 3*784), 3, 28, 28),
		"train-labels-idx1-ubyte": encode([]byte{0, 9, 5}, 3),
		"t10k-images-idx3-ubyte":  encode(make([]byte, 2*784), 2, 28, 28),
		"t10k-labels-idx1-ubyte":  encode([]byte{1, 2}, 2),
	}
}

func TestMNISTNames(t *testing.T) {
	for name, rename := range map[string]func(string) string{
		"dash":    func(s string) string { return s },
		"dot":     func(s string) string { return strings.Replace(s, "-idx", ".idx", 1) },
		"dash gz": func(s string) string { return s + ".gz" },
		"dot gz":  func(s string) string { return strings.Replace(s, "-idx", ".idx", 1) + ".gz" },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, raw := range smallMNIST() {
				file = rename(file)
				if strings.HasSuffix(file, ".gz") {
					raw = compress(t, raw)
				}
				write(t, filepath.Join(dir, file), raw)
			}
			trainX, trainY, testX, testY, err := MNIST(dir)
			if err != nil {
				t.Fatal(err)
			}
			if trainX.Dims[0] != 3 || testX.Dims[0] != 2 ||
				!bytes.Equal(trainY.Data, []byte{0, 9, 5}) || !bytes.Equal(testY.Data, []byte{1, 2}) {
				t.Errorf("got %v %v %v %v", trainX.Dims, trainY, testX.Dims, testY)
			}
		})
	}
}

func TestMNISTErrors(t *testing.T) {
	images := func(n, h, w uint32) []byte { return encode(make([]byte, n*h*w), n, h, w) }
	for name, tt := range map[string]struct {
		change  map[string][]byte // nil content removes the file
		want    []string
		missing bool
	}{
		"missing": {
			map[string][]byte{"t10k-labels-idx1-ubyte": nil},
			[]string{"t10k-labels-idx1-ubyte, t10k-labels-idx1-ubyte.gz, t10k-labels.idx1-ubyte, t10k-labels.idx1-ubyte.gz"}, true,
		},
		"damaged": {
			map[string][]byte{"train-images-idx3-ubyte": images(3, 28, 28)[:1000]},
			[]string{"train-images-idx3-ubyte", "3x28x28 = 2352 bytes of data, the file has 984"}, false,
		},
		"counts": {
			map[string][]byte{"train-labels-idx1-ubyte": encode([]byte{1, 2}, 2)},
			[]string{"train-images-idx3-ubyte has 3 images", "train-labels-idx1-ubyte has 2 labels"}, false,
		},
		"label": {
			map[string][]byte{"t10k-labels-idx1-ubyte": encode([]byte{1, 10}, 2)},
			[]string{"t10k-labels-idx1-ubyte", "label 1 is 10, want 0..9"}, false,
		},
		"image size": {
			map[string][]byte{"t10k-images-idx3-ubyte": images(2, 32, 28)},
			[]string{"t10k-images-idx3-ubyte", "dimensions [2 32 28]"}, false,
		},
		"no images": {
			map[string][]byte{"t10k-images-idx3-ubyte": images(0, 28, 28)},
			[]string{"t10k-images-idx3-ubyte", "dimensions [0 28 28]"}, false,
		},
		"labels of two dimensions": {
			map[string][]byte{"t10k-labels-idx1-ubyte": encode([]byte{1, 2}, 2, 1)},
			[]string{"t10k-labels-idx1-ubyte", "dimensions [2 1]"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			files := smallMNIST()
			maps.Copy(files, tt.change)
			for file, raw := range files {
				if raw != nil {
					write(t, filepath.Join(dir, file), raw)
				}
			}
			_, _, _, _, err := MNIST(dir)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(tt.want, dir, "idx: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q has no %q", err, want)
				}
			}
			if got := errors.Is(err, fs.ErrNotExist); got != tt.missing {
				t.Errorf("fs.ErrNotExist: %v for %v", got, err)
			}
		})
	}
}

func TestModuleDir(t *testing.T) {
	mkdir := func(root, version string) {
		dir := filepath.Join(root, "github.com", "petar", "!go!m!n!i!s!t@"+version, "data")
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cache, gopath, home := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("GOMODCACHE", cache)
	t.Setenv("GOPATH", gopath+string(filepath.ListSeparator)+t.TempDir())
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	t.Setenv("PATH", "") // no go command

	_, err := ModuleDir()
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "go mod download") || !strings.Contains(err.Error(), cache) {
		t.Errorf("empty caches: error %v", err)
	}
	mkdir(filepath.Join(home, "go", "pkg", "mod"), "v0.0.0-2015")
	mkdir(filepath.Join(gopath, "pkg", "mod"), "v0.0.0-2015")
	mkdir(cache, "v0.0.0-2015")
	mkdir(cache, "v0.0.0-2016")
	if got, err := ModuleDir(); err != nil || !strings.HasPrefix(got, cache) || !strings.Contains(got, "2016") {
		t.Errorf("ModuleDir() = %v, %v, want the newest in %v", got, err, cache)
	}
	t.Setenv("GOMODCACHE", "")
	if got, err := ModuleDir(); err != nil || !strings.HasPrefix(got, gopath) {
		t.Errorf("ModuleDir() = %v, %v, want one in %v", got, err, gopath)
	}
	t.Setenv("GOPATH", "")
	if got, err := ModuleDir(); err != nil || !strings.HasPrefix(got, home) {
		t.Errorf("ModuleDir() = %v, %v, want one in %v", got, err, home)
	}
}
