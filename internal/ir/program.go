package ir

import (
	"context"
	"fmt"
	"time"
	"unsafe"
)

// Operand is a strided view of a region: where a step reads or writes.
type Operand struct {
	Region  Region
	Offset  int // in elements of its type
	DType   DType
	Shape   Shape
	Strides []int // in elements; 0 where a dimension repeats
}

// Contiguous reports whether the operand lies row-major without gaps.
func (o Operand) Contiguous() bool {
	n := 1
	for i := len(o.Shape) - 1; i >= 0; i-- {
		if o.Shape[i] != 1 && o.Strides[i] != n {
			return false
		}
		n *= o.Shape[i]
	}
	return true
}

// Instr is one instruction of a [Loop]: it makes register number i, its own position in Loop.Code. Exactly the fields
// that its Kind names are used.
type Instr struct {
	Kind InstrKind
	Fn   Fn      // Apply
	A    [3]int  // Apply: registers of the arguments
	In   int     // Load: index into Step.In
	X    float32 // Imm
	Axis int     // Index: the dimension of the loop
	Rand Rand    // Random
}

// InstrKind says what an Instr does.
type InstrKind uint8

// The kinds of instruction.
const (
	Load   InstrKind = iota // the element of Step.In[In]; an i32 element or a half is converted to float32
	Imm                     // the number X
	Apply                   // Fn of registers A
	Index                   // the index along Axis, as float32
	Random                  // the next uniform number; see Rand
)

// Loop is straight-line code that runs once for every element of Shape. Loads address operands of exactly this shape
// (dimensions may repeat, by stride 0).
type Loop struct {
	Shape Shape
	Code  []Instr
}

// Step is one operation of a Program.
//
// By Op's type:
//
//	Fused        Loop runs over its shape; register Results[i] goes to Out[i], contiguous, of the loop's shape. An Out may be
//	             exactly the place of a contiguous In (in place): each element is loaded wherever it is used before it is stored.
//	Reduce       Loop makes the element, in its last register; Out[0] has the loop's shape with Axes of extent 1.
//	MatMul       In[0] x In[1] (any strides) -> Out[0] (inner stride 1), then Epilogue; with its Sums or Totals there are two matrices, and Out[1].
//	Conv2d       In[0], In[1] contiguous -> Out[0] contiguous, then Epilogue. Contiguous in the order of the shape, with channels last too.
//	Pool2d       as in the Graph; with the Epilogue's Places there is Out[1]. So there is with the Losses of CrossEntropyGrad.
//	Collective   see there.
//	Copy         Out[0] = In[0], any strides; types may differ where one is a half.
//	others       as in the Graph: In are the arguments, Out[0] the result. All are contiguous, except that Concat and Unslice take
//	             arguments with any strides.
//
// Numbers may lie as halves, in operands of a [Target] whose device has them: everything computes on float32 and sums in it, and a result
// that is to be a half is rounded then, where it is not one already.
type Step struct {
	Op       Op
	In, Out  []Operand
	Loop     *Loop
	Results  []int
	Epilogue Epilogue
	Name     string // for people
}

// Epilogue is what a product does to its result before writing it, and what else it computes of what it reads anyway. [Step.Plain] says
// the same in steps without it.
type Epilogue struct {
	Bias int  // index into In of a vector: added along the last dimension of MatMul, the channels of Conv2d; 0 means none
	Relu bool // after the bias
	// Of MatMul, and of Conv2dGradW for images of one channel that lies last.
	Mask int  // index into In of an operand of the result's shape: the result is 0 where that is 0 or less, as relu's gradient is; 0 means none
	Sums bool // Out[1] is the sum of each row of In[0], one a row: where In[0] is a gradient, transposed, that of a bias
	// Of MatMul with a mask, in place of Sums.
	Totals bool // Out[1] is the sum of each column of Out[0], one a column: where that is a gradient, a bias's again
	// Conv2dGradW: the mask is for dy, In[1], and the step may change that; the sums are dy's, one a channel.
	// Of Pool2d only.
	Places bool // Out[1] is what PoolPlaces makes of In[0] and the same window
	// Of CrossEntropyGrad only.
	Losses bool // Out[1] is what CrossEntropy makes of the same logits, labels and weights
}

// Ops that exist in programs only.
type (
	// Fused is an elementwise loop with one or more results.
	Fused struct{}
	// Copy moves elements.
	Copy struct{}
	// Collective moves data between ranks. In[0] and Out[0] are the same contiguous range of words, except as said. A [Part] may broadcast a slot
	// of halves, of which two are a word.
	Collective struct {
		Kind CollectiveKind
		Root int // Reduce, Broadcast
		// ActiveOnly: among the ranks that have samples in this step; otherwise among all.
		ActiveOnly bool
		// Joined: a device that carries out collectives itself may do this one at once with the collective before it, on all ranks.
		Joined bool
	}
)

func (Fused) op()      {}
func (Copy) op()       {}
func (Collective) op() {}

// CollectiveKind names a collective.
type CollectiveKind uint8

// The collectives of a program. Sums are taken in rank order, so that the bits never depend on timing.
const (
	AllReduce     CollectiveKind = iota // every rank gets the sum
	ReduceTo                            // Root gets the sum; the others' ranges keep their content
	BroadcastFrom                       // every rank gets Root's range
	ReduceScatter                       // rank r's share of the range gets the sum; see ShareOf
	AllGather                           // every rank gets every rank's share of the range
)

// String returns the collective's name.
func (k CollectiveKind) String() string {
	return [...]string{"all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"}[k]
}

// ShareOf is the part [lo, hi) of n elements that rank r of world owns in ReduceScatter and AllGather: equal parts of
// ceil(n/world), the last ones shorter or empty.
func ShareOf(n, r, world int) (lo, hi int) {
	q := (n + world - 1) / world
	return min(r*q, n), min((r+1)*q, n)
}

// Program is what a backend compiles and runs. It is immutable.
type Program struct {
	Name  string // for people: "train [64,1,28,28]"
	Steps []Step
	// Size holds the words, of four bytes, of each region that the program addresses. For a region that belongs to the rank it is the
	// whole region, the same in all programs of the rank.
	Size [NumRegions]int
	// Consts is the content of the Consts region, as float32 or int32 bits.
	Consts []uint32
	// Target is what it was compiled for.
	Target Target
	// Slots are the places that callers know by name, in no particular order.
	Slots []*Slot
	// Checks are what the caller verifies of an input before each run: a CheckIndex directly on an input costs nothing on the
	// device and fails before anything has run.
	Checks []Check
}

// Check says that the i32 elements of an input slot lie in 0..Bound-1 or are Ignore.
type Check struct {
	Slot *Slot
	CheckIndex
}

// Verify returns an [IndexError] for the first element out of range, or nil.
func (c CheckIndex) Verify(x []int32) error {
	for i, v := range x {
		if (v < 0 || int(v) >= c.Bound) && int(v) != c.Ignore {
			return &IndexError{What: c.What, Index: i, Value: int(v), Bound: c.Bound}
		}
	}
	return nil
}

// Part is one stretch of a program: a graph, or a collective on a slot.
type Part struct {
	Graph      *Graph
	Collective *Collective
	On         *Slot
}

// Slot returns the slot of that region and name, or nil.
func (p *Program) Slot(r Region, name string) *Slot {
	for _, s := range p.Slots {
		if s.Region == r && s.Name == name {
			return s
		}
	}
	return nil
}

// Bytes returns the bytes that region r takes.
func (p *Program) Bytes(r Region) int64 { return int64(p.Size[r]) * wordSize }

// Memory says how many bytes a program needs, by what they are for. Every kind is one allocation, made in units of 512
// bytes; the numbers count whole units, so that they are what an allocator reports.
type Memory struct {
	Parameters, Gradients, OptimizerState, Buffers int64 // the rank's, shared by its programs
	Activations, Inputs, Outputs, Constants        int64 // the program's own
}

// Total is the sum of all kinds.
func (m Memory) Total() int64 { return m.Shared() + m.Own() }

// Shared is what the rank holds once for all its programs.
func (m Memory) Shared() int64 {
	return m.Parameters + m.Gradients + m.OptimizerState + m.Buffers
}

// Own is what one program adds.
func (m Memory) Own() int64 { return m.Activations + m.Inputs + m.Outputs + m.Constants }

// AllocUnit is the size that allocations are rounded up to, in bytes.
const AllocUnit = 512

// Allocated is what an allocation of n bytes takes.
func Allocated(n int64) int64 { return roundUp(n, AllocUnit) }

func roundUp[T int | int64](n, unit T) T { return (n + unit - 1) / unit * unit }

// Memory returns what the program needs, known before it runs. The Hyper scalars count as input.
func (p *Program) Memory() Memory {
	b := func(r Region) int64 { return Allocated(p.Bytes(r)) }
	return Memory{
		Parameters: b(Params), Gradients: b(Grads), OptimizerState: b(State), Buffers: b(Buffers),
		Activations: b(Work), Inputs: b(Input) + b(Hyper), Outputs: b(Output), Constants: b(Consts),
	}
}

// Runtime is what may differ from one run of a program to the next besides the content of its regions.
type Runtime struct {
	Seed        uint64 // keys Rand together with the op's stream
	Step        uint64 // the number of this step; mixed into the key
	FirstSample int    // index, in the whole batch, of the rank's first sample
	Comm        Comm   // for collectives; nil when the rank is alone
}

// Key is the generator's key for this step: Seed and Step mixed, so that nearby seeds and steps share nothing.
func (rt *Runtime) Key() uint64 {
	x := rt.Seed ^ (rt.Step+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Comm carries out the collectives of a running program for one rank. Calls block until the rank's part is done and are made
// in the same order by every rank of the group. buf is the rank's memory.
type Comm interface {
	Collective(ctx context.Context, op Collective, buf []float32) error
}

// Peers is a Comm that knows its group.
type Peers interface {
	Comm
	Rank() int
	Size() int
	// Err is why the group is broken, or nil. It waits for nobody and may be called from anywhere at any time.
	Err() error
	// Limit is how long a rank waits for others at most.
	Limit() time.Duration
}

// Joiner is a Device that can carry out collectives by itself, together with those of other ranks.
type Joiner interface {
	Device
	// Join links the device with those of all other ranks of a group, each of which calls it. Programs that are loaded from then on, as
	// long as the link lasts, do their collectives among all ranks by it; their runs still need a Comm, to meet before that and for the
	// rest. most is about how many bytes the largest of these collectives will have, the same on all ranks. Where devices can't be linked the error is a [*UnlinkedError], on all ranks.
	Join(ctx context.Context, peers Peers, most int64) (Link, error)
}

// Link is what Join gives.
type Link interface {
	// Err is why work of programs was cut off in the middle of a collective, or nil. Then what they have written has no meaning.
	Err() error
	// Note says what is missing that would make exchanges faster, if something is.
	Note() string
	// Close ends the link, after the executables that use it. It is called on every rank at about the same time.
	Close() error
}

// UnlinkedError says why devices can't be linked, so that collectives go by way of the host.
type UnlinkedError struct {
	Rank int // the first for which that is so
	Why  string
}

func (e *UnlinkedError) Error() string {
	return fmt.Sprintf("gradients go by way of the host's memory, which is slow: rank %d: %s", e.Rank, e.Why)
}

// Device is an open card, or the host: memory, and programs that run on it.
// Implementations: package host, and cudaops for cards. One goroutine at a time may use a Device.
type Device interface {
	// ID is the logical number of the card, or -1 for the host.
	ID() int
	// String is "cuda:1" or "cpu".
	String() string
	// Alloc takes n bytes of the device's memory, content undefined.
	Alloc(n int64) (DeviceMemory, error)
	// Load compiles p to run on the given memories, one a region (nil where the program's Size is 0). They must outlive the Executable.
	Load(p *Program, mem [NumRegions]DeviceMemory) (Executable, error)
	// Close frees what the device itself holds; memories are the caller's to free.
	Close() error
}

// Weigher is a Device whose executables take memory besides their programs' regions.
type Weigher interface {
	Device
	// Weigh says how many bytes of the device's memory the executable would take that Load makes of p, without taking them. Where that depends on
	// what Load has to measure, it is what it comes to without measuring, for which there may be no room, and the most that it may be.
	Weigh(p *Program) (likely, most int64, err error)
}

// Weighed is an Executable of such a device.
type Weighed interface {
	Executable
	// Extra is how many bytes of the device's memory it has besides the regions.
	Extra() int64
}

// DeviceMemory is a block of a device's memory.
type DeviceMemory interface {
	Len() int64
	// Host returns the bytes themselves where the host can address them, else nil.
	Host() []byte
	Write(off int64, src []byte) error
	Read(off int64, dst []byte) error
	// Clear sets all bytes to 0.
	Clear() error
	Free() error
}

// Bytes is the memory of x, as DeviceMemory reads and writes it.
func Bytes[T float32 | int32 | uint32](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), wordSize*len(x))
}

// Words is the inverse of [Bytes].
func Words[T float32 | int32 | uint32](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/wordSize)
}

// Executable is a program ready to run on its memories.
type Executable interface {
	// Run runs the program once and returns when its results are in memory. The context stops it up to its first collective
	// among all ranks, or its first write to Params or State, whichever comes first; from then on the run is completed, so
	// that either all ranks update or none does.
	Run(ctx context.Context, rt *Runtime) error
	// Close frees what the executable holds.
	Close() error
}

// Starter is an Executable that can run ahead of its caller, as those of cards can.
type Starter interface {
	Executable
	// Start gives the device a run and returns its number, mostly before the run is done: a few runs may be under way. Memories may be
	// written and read as after Run; the device keeps the order. The context is as for Run.
	Start(ctx context.Context, rt *Runtime) (run uint64, err error)
	// Wait returns when a run is done, with its error, and fills out, of at most [LateBytes], with the start of the Output region as
	// the run left it. Runs are waited for in their order, but not every one must be.
	Wait(run uint64, out []byte) error
}

// LateBytes is how much of what a run puts out [Starter.Wait] can give.
const LateBytes = 64

// Copier is a DeviceMemory that can be filled from another one of its device without the host.
type Copier interface {
	DeviceMemory
	// CopyFrom copies the first n bytes of src, in the device's order.
	CopyFrom(src DeviceMemory, n int64) error
}

// EarlyWriter is a DeviceMemory that can be written while the device computes.
type EarlyWriter interface {
	DeviceMemory
	// WriteEarly is Write beside the work that the device was given before, but after copies from this memory, and before those that come
	// later. Nothing else may use memory that was written early; it can be freed at any time.
	WriteEarly(off int64, src []byte) error
}

func (o Operand) String() string {
	s := fmt.Sprintf("%s+%d:%s%s", o.Region, o.Offset, o.DType, o.Shape)
	if !o.Contiguous() {
		s += fmt.Sprintf("/%v", o.Strides)
	}
	return s
}
