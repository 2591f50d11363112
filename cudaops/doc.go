// Package cudaops is the cards of a process, in the vocabulary of torch.cuda:
// which cards there are, which one is current, their names, seeds, memory,
// memory caps and statistics.
//
// # Cards and their numbers
//
// A machine numbers its physical cards from 0. CUDA_VISIBLE_DEVICES chooses and
// orders the cards that a process sees, and inside the process they get logical
// numbers from 0. Every function here takes logical numbers. Logical card 0 is
// the primary card. With four cards and CUDA_VISIBLE_DEVICES=3,2,0,1 physical
// card 3 is cuda:0, 2 is cuda:1, 0 is cuda:2 and 1 is cuda:3.
//
// [AvailableDevices] lists the visible cards; [VisibleDevices] says besides
// which entries of the variable had no effect, and why. To match a card with
// what other tools show, use its UUID: their numbers may be others. Package
// machine lists all cards of the machine, for tools.
//
// To choose cards, prefer CUDA_VISIBLE_DEVICES to [SetDevice]. The current
// device is one number for the whole process, since Go code has no thread of its
// own to keep it in: SetDevice in one goroutine changes [CurrentDevice] for all.
// Only [ManualSeed] uses it; everything else names its card.
//
// # Real cards
//
// CUDA's driver (libcuda.so.1) is loaded when the first call wants to know of
// cards; nothing of CUDA is needed to build. The driver reads CUDA_VISIBLE_DEVICES
// and decides what it shows. A machine without a driver has no cards, which is no
// error; a driver that does not work is one, of [AvailableDevices]. Physical
// numbers and other processes are NVML's to tell (libnvidia-ml.so.1, which comes
// with the driver).
//
// A card gets a context, which takes some of its memory and of the process's
// time, when it is first used: by [Alloc], by [Open], or by what asks how much of it is
// free ([MemGetInfo], [MemorySummary], [Rehearse]). Cards that a process does not use stay free of it.
//
// # Simulated cards
//
// TANDEM_SIM_CARDS makes cards whose memory is the host's and which obey
// everything else: numbering, caps, out of memory. They take the place of real ones.
//
//	TANDEM_SIM_CARDS=4             four cards of 16 GiB
//	TANDEM_SIM_CARDS=4x2GiB        four cards of 2 GiB
//	TANDEM_SIM_CARDS=2GiB,1GiB     a card of 2 GiB and one of 1 GiB
//	TANDEM_SIM_CARDS=2x2GiB,1GiB   two cards of 2 GiB and one of 1 GiB
//
// Their memory costs the host nothing until it is written to. Their UUIDs are
// made up and always the same; their capability is 0.0; and each has one
// multiprocessor, for they all share the host's cores and none is faster.
// Without the variable and without real cards there are none: [DeviceCount] is 0,
// [IsAvailable] is false, [AvailableDevices] is empty and the rest gives a
// [*NoDeviceError].
//
// # Memory
//
// [Alloc] takes memory from a caching allocator: one per card, which gets
// segments from the driver, cuts blocks from them and keeps freed blocks for the
// next request. So there are two numbers: allocated (blocks in use) and
// reserved (segments held). [EmptyCache] gives segments without a block in use
// back to the driver.
//
// New memory is not zeroed, and holds anything. On simulated cards, memory that
// was used before is filled with 0xFF bytes, so that a float32 read from it
// before it was written is NaN.
//
// # Caps
//
// Processes that share a card cap themselves, by [SetPerProcessMemoryFraction]
// (a share of the card's total memory), [SetDeviceMemoryLimit] (bytes) or the
// variable CUDA_DEVICE_LIMIT:
//
//	CUDA_DEVICE_LIMIT=8GiB         8 GiB on every visible card
//	CUDA_DEVICE_LIMIT=50%          half of every visible card
//	CUDA_DEVICE_LIMIT=0:8GiB,1:50% each card its own, by logical number
//
// The smallest of them holds; [MemoryLimit] says how much it is and where it
// comes from, and [MemoryLimits] lists the others, too. On Linux the same user's
// processes see it as well, and tandem top shows it. A cap counts what the allocator has reserved and what else the
// process holds on the card (its context and libraries), as NVML sees it; where
// there is no NVML, and on parts of cards (MIG), only what the allocator has reserved. On real cards requests
// leave 32 MiB of a cap to the driver, which takes memory for kernels and graphs
// by itself when programs are loaded and run. Lowering a cap gives
// cached memory back and frees nothing that is in use. Sizes are a decimal number and a unit: B, KiB, MiB, GiB
// (powers of 1024), KB, MB, GB (powers of 1000), in capitals or small letters.
//
// When a request fits neither cap nor card, cached segments are given back and
// the request is tried again; then it fails with an [*OutOfMemoryError]. The
// process is whole afterwards: a smaller request may succeed.
//
// # Life cycle
//
// The variables are read once, at the first call. When one of them has changed
// since, calls fail with an [*EnvironmentChangedError] rather than go on with
// the old cards.
//
// # Concurrency and errors
//
// Everything may be called from many goroutines at once. Reading and writing the
// same bytes of a [Memory] at once is a data race, as with any slice.
//
// Errors that a caller may want to tell apart are typed: [*NoDeviceError],
// [*InvalidDeviceError], [*OutOfMemoryError], [*InvalidFractionError],
// [*VariableError], [*EnvironmentChangedError] and [ErrFreed]. Where users know
// PyTorch's words for an error, the text has those.
package cudaops
