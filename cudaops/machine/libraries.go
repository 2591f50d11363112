package machine

import (
	"fmt"

	"github.com/tandem-train/tandem/cudaops/internal/cublas"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/cudaops/internal/cudnn"
	"github.com/tandem-train/tandem/cudaops/internal/nccl"
	"github.com/tandem-train/tandem/cudaops/internal/nvrtc"
)

// Library is one of CUDA's libraries, as a program finds it here.
type Library struct {
	Name    string
	For     string // what it is needed for
	Path    string // of its file
	Version string // of the driver, the newest CUDA that it serves
	Err     error  // why it can't be used; then path and version are empty
}

// Libraries opens the libraries that computing on cards takes, and says which there are. A missing one's error says where it was
// looked for and what would help. The error of CUDA's driver is about the library alone: that it shows a card is [Inspect]'s to say.
func Libraries() []Library {
	list := []Library{
		{Name: "CUDA driver", For: "all computing on cards"},
		{Name: "NVRTC", For: "kernels that are not compiled yet"},
		{Name: "cuBLASLt", For: "matrix products"},
		{Name: "cuDNN", For: "convolutions"},
		{Name: "NCCL", For: "exchange between cards"},
	}
	for i, look := range []func() (path, version string, err error){lookDriver, lookNVRTC, lookBLAS, lookDNN, lookNCCL} {
		l := &list[i]
		l.Path, l.Version, l.Err = look()
	}
	return list
}

func lookDriver() (path, version string, err error) {
	path, v, err := cuda.Find()
	if err != nil {
		return "", "", err
	}
	return path, fmt.Sprintf("%d.%d", v/1000, v%1000/10), nil // of CUDA: the driver counts its own otherwise
}

func lookNVRTC() (path, version string, err error) {
	l, err := nvrtc.Open()
	if err != nil {
		return "", "", err
	}
	return l.Path(), fmt.Sprintf("%d.%d", l.Major, l.Minor), nil
}

func lookBLAS() (path, version string, err error) {
	l, err := cublas.Open()
	if err != nil {
		return "", "", err
	}
	v := l.Version()
	return l.Path(), fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100), nil
}

func lookDNN() (path, version string, err error) {
	l, err := cudnn.Open()
	if err != nil {
		return "", "", err
	}
	v := l.Version()
	return l.Path(), fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100), nil
}

func lookNCCL() (path, version string, err error) {
	l, err := nccl.Open()
	if err != nil {
		return "", "", err
	}
	v := l.Version()
	return l.Path(), fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100), nil
}
