// Package backendtest is the conformance suite of backends: what every [ir.Device] must do, tested through its public
// interface against the float64 definitions of package ref. A backend's test is one call:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, func(t *testing.T) ir.Device { return host.Open(2) })
//	}
//
// # What a case does
//
// A case builds graphs on fresh random shapes and numbers, compiles them, allocates every region at exactly the size that
// the program says, fills the memory that has no content yet with NaN, and runs. Then it asks that
//
//   - every stored slot equals what ref says, within the tolerance below, on two sets of inputs one after the other;
//   - nothing else in memory that callers can see has changed by a bit;
//   - a second run on the same content gives the same bits;
//   - after the first run nothing is allocated, if the backend says [NoAllocs].
//
// So a case also tests the passes of package ir. The cases are grouped in tables: fn (every scalar function), op (every op of a
// graph), view (operands with odd strides), program (training steps, updates in place, several parts) and random (graphs
// drawn at random), and half (the last four again, in 16-bit precision); then ranks (collectives), fault (errors) and memory.
//
// # Tolerance
//
// How much float32 may differ from float64 depends on the graph. The suite measures it: ref runs again with every value changed at
// random by up to 2^-23 of itself, and the deviation of the results is the scale that limits.hold multiplies (see there for the rule). A
// case may instead ask for equal numbers.
//
// # Failures
//
// Every case has its own random numbers and prints their seed when it fails; with TANDEM_SEED set to it, the same numbers come again
// (run that case alone, with -run). With -short, as under the race detector, large shapes and most random graphs are left out.
package backendtest
