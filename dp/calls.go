package dp

import (
	"fmt"
	"strings"
)

// kind says which method a rank has called.
type kind int32

const (
	stepCall    kind = 1 + iota // Step: rank 0 has the batch
	shardCall                   // StepShard: every rank has its share
	forwardCall                 // Forward
	loadCall                    // LoadStateDict
	joinCall                    // Join
	uploadCall                  // Upload: every rank has its share
	saveCall                    // SaveCheckpoint
	resumeCall                  // LoadCheckpoint
)

func (k kind) String() string {
	switch k {
	case stepCall:
		return "Step"
	case shardCall:
		return "StepShard"
	case forwardCall:
		return "Forward"
	case loadCall:
		return "LoadStateDict"
	case joinCall:
		return "Join"
	case uploadCall:
		return "Upload"
	case saveCall:
		return "SaveCheckpoint"
	case resumeCall:
		return "LoadCheckpoint"
	}
	return fmt.Sprintf("call %d", int32(k))
}

// maxDims is the most dimensions that a tensor may have in a job of several processes.
const maxDims = 8

// header is what a rank has come with: its call, whether its context has ended, and its input's form.
type header struct {
	call kind
	stop bool
	x    form
}

// headerWords is the size of a header, in elements.
const headerWords = 4 + maxDims

// put writes h to w, of headerWords elements.
func (h *header) put(w []int32) {
	clear(w)
	w[0] = int32(h.call)
	w[1] = flag(h.stop)
	w[2] = flag(h.x.ints)
	w[3] = int32(len(h.x.shape))
	for i, d := range h.x.shape {
		w[4+i] = int32(d)
	}
}

// get reads h from w; it keeps the memory of h's shape.
func (h *header) get(w []int32) {
	h.call, h.stop, h.x.ints = kind(w[0]), w[1] != 0, w[2] != 0
	shape := h.x.shape[:0]
	for _, d := range w[4 : 4+w[3]] {
		shape = append(shape, int(d))
	}
	h.x.shape = shape
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// decision is what ranks do that have come with some headers.
type decision struct {
	call kind
	end  bool // ranks that have called Step get ErrEnd; the others come again
	stop int  // all stop, because this rank's context has ended; -1: none
}

// decide says what ranks do next. All that have the same headers decide the same.
//
// Ranks that have come to Forward, SaveCheckpoint, LoadStateDict, LoadCheckpoint or Join wait there for all. Until then they take part in the others' steps: without
// samples in StepShard, with those that rank 0 scatters in Step. A batch to scatter exists only as long as rank 0 calls Step.
func decide(h []header) (decision, error) {
	d := decision{call: h[0].call, stop: -1}
	same, shard, step := true, false, false
	for r := range h {
		if h[r].stop && d.stop < 0 {
			d.stop = r
		}
		same = same && h[r].call == d.call
		shard = shard || h[r].call == shardCall
		step = step || h[r].call == stepCall
	}
	switch {
	case d.stop >= 0 || same:
		return d, nil
	case shard && step || !shard && !step:
		return d, callsError(h)
	case shard:
		d.call = shardCall
	case h[0].call != stepCall:
		d.end = true
	}
	return d, nil
}

// CallsError is the error of ranks that have come to calls that don't go together.
type CallsError struct {
	Calls []string // by rank: "Step", "Forward", ...
}

func callsError(h []header) error {
	e := new(CallsError)
	for r := range h {
		e.Calls = append(e.Calls, h[r].call.String())
	}
	return e
}

func (e *CallsError) Error() string {
	parts := make([]string, len(e.Calls))
	for r, c := range e.Calls {
		parts[r] = fmt.Sprintf("rank %d has called %s", r, c)
	}
	return "dp: ranks have made different calls: " + strings.Join(parts, ", ") + ": every rank must make the same calls in the same order"
}
