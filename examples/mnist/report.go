package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/internal/atomicfile"
	"github.com/tandem-train/tandem/nn"
)

// report is what a run reached, for programs to read. What an interrupted run has not reached is null.
type report struct {
	TestAccuracy  *float64 `json:"test_accuracy"` // 0..1
	TrainLoss     *float64 `json:"train_loss"`    // of the last step
	Steps         int      `json:"steps"`
	Epochs        int      `json:"epochs"` // whole ones
	WorldSize     int      `json:"world_size"`
	Devices       []device `json:"devices"`       // by rank; of several processes, those of rank 0's
	SkippedSteps  int      `json:"skipped_steps"` // of Steps, those whose gradients did not fit in --precision fp16
	Strategy      string   `json:"strategy"`
	ImagesPerSec  float64  `json:"images_per_second"`     // in training, from the second step on
	FirstStepSecs *float64 `json:"seconds_to_first_step"` // from the start of the process to the end of the step

	// Over all parameters, in the state dict's order: the square root of the sum of squares in float64, and the SHA-256, in
	// hexadecimal, of their little-endian float32 bytes.
	ParametersL2     float64 `json:"parameters_l2"`
	ParametersSHA256 string  `json:"parameters_sha256"`

	Memory []memory `json:"memory"` // of Devices
}

// device is a card that took part, or the host, which is number -1.
type device struct {
	Logical  int    `json:"logical"`
	Physical int    `json:"physical"`
	Name     string `json:"name"`
	Primary  bool   `json:"primary"` // the first of the run's devices
}

// memory is what the process holds on a device, in bytes: in use, and in use or cached.
type memory struct {
	Logical   int   `json:"logical"`
	Allocated int64 `json:"allocated"`
	Reserved  int64 `json:"reserved"`
}

// writeReport writes the report of what the session has reached.
func (s *session) writeReport(path string) error {
	rep, err := s.report()
	if err != nil {
		return fmt.Errorf("--report %s: %w", path, err)
	}
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return fmt.Errorf("--report %s: %w", path, err)
	}
	if err := atomicfile.Write(path, append(text, '\n')); err != nil {
		return fmt.Errorf("--report %s: %w", path, err)
	}
	return nil
}

func (s *session) report() (*report, error) {
	r := &s.reached
	rep := &report{
		Steps:        r.steps,
		Epochs:       r.steps / s.train.Batches(),
		WorldSize:    s.trainer.WorldSize(),
		SkippedSteps: r.skipped,
		Strategy:     s.trainer.Strategy().String(),
		ImagesPerSec: r.imagesPerSecond(),
	}
	if r.images > 0 {
		seconds := r.firstStep.Seconds()
		rep.TrainLoss, rep.FirstStepSecs = &r.loss, &seconds
	}
	if r.tested > 0 {
		rep.TestAccuracy = &r.accuracy
	}
	var err error
	if rep.Devices, err = devices(s.trainer); err != nil {
		return nil, err
	}
	if rep.Memory, err = memories(s.trainer); err != nil {
		return nil, err
	}
	if rep.ParametersL2, rep.ParametersSHA256, err = s.digest(); err != nil {
		return nil, err
	}
	return rep, nil
}

func devices(t *dp.DataParallel) ([]device, error) {
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		return nil, err
	}
	var out []device
	for rank, id := range t.Devices() {
		d := device{Logical: id, Physical: id, Name: cudaops.String(id), Primary: rank == 0}
		if id != dp.Host {
			d.Physical, d.Name = cards[id].Physical, cards[id].Name
		}
		out = append(out, d)
	}
	return out, nil
}

func memories(t *dp.DataParallel) ([]memory, error) {
	var out []memory
	for _, rank := range t.Memory() {
		m := memory{Logical: rank.Device, Allocated: rank.Total(), Reserved: rank.Total()} // the host has no cache
		if rank.Device != dp.Host {
			var err error
			if m.Allocated, err = cudaops.MemoryAllocated(rank.Device); err != nil {
				return nil, err
			}
			if m.Reserved, err = cudaops.MemoryReserved(rank.Device); err != nil {
				return nil, err
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// digest computes the two numbers that tell whether two runs have the same parameters.
func (s *session) digest() (l2 float64, sum string, err error) {
	state, err := s.trainer.StateDict()
	if err != nil {
		return 0, "", err
	}
	params, err := nn.NamedParameters(s.model)
	if err != nil {
		return 0, "", err
	}
	hash, squares := sha256.New(), 0.0
	var bytes []byte
	for _, p := range params {
		values := state.Get(p.Name).Float32s()
		for _, v := range values {
			squares += float64(v) * float64(v)
		}
		if bytes, err = binary.Append(bytes[:0], binary.LittleEndian, values); err != nil {
			return 0, "", fmt.Errorf("%s: %w", p.Name, err)
		}
		hash.Write(bytes)
	}
	return math.Sqrt(squares), hex.EncodeToString(hash.Sum(nil)), nil
}

// checkFile finds out before training whether a file can be written to path, which a flag has named.
func checkFile(flag, path string) error {
	if err := atomicfile.Check(path); err != nil {
		return fmt.Errorf("%s %s: it can't be written: %w", flag, path, err)
	}
	return nil
}
